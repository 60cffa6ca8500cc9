"""Allocated and changed blocks: a backup made from them is complete (csi-spec SnapshotMetadata)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator

from csi_multi.contract import (
    BlockMap,
    Extent,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    SizeRange,
    Snapshot,
    Volume,
)
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..protocol import Target
from ..storage import MIB
from .sources import is_served, snapshot_as_source

ZEROING = {"BLKZEROOUT": 0x127F, "BLKDISCARD": 0x1277}  # linux/fs.h
MARKED = 1 << 30  # bytes of a large volume that hold data here and there
NOT_AVAILABLE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)


def volume_with_snapshot(t: CheckContext) -> tuple[Volume, Snapshot]:
    """Return a volume with known data at both ends, and a snapshot of it."""
    volume = t.volume()
    t.fill(volume, "kit blocks")
    return volume, snapshot_as_source(t, volume)


def changed(t: CheckContext, base: Snapshot, target: Snapshot, offset: int = 0) -> list[Extent]:
    try:
        return t.client.changed(base.handle, target.handle, offset)
    except t.client.kind_of(FailedPrecondition) as error:
        raise CheckSkipped(f"changes are not tracked: {error}") from None


def zero(t: CheckContext, volume: Volume, method: str, start: int, length: int) -> bool:
    """Zero a range of a volume; return False where its device cannot."""
    if t.storage.write:
        t.write(volume, bytes(length), start)
        return True
    with t.client.device_path(volume.handle) as path:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(descriptor, ZEROING[method], struct.pack("=QQ", start, length))
            os.fsync(descriptor)
        except OSError as error:
            if error.errno in NOT_AVAILABLE:
                return False
            raise
        finally:
            os.close(descriptor)
    return True


def middle(volume: Volume) -> int:
    return volume.size // 2 // BLOCK_SIZE * BLOCK_SIZE


def first_missing(extents: list[Extent], start: int, end: int) -> int | None:
    """Return the first byte of a range that no extent has."""
    for one in extents:
        if one.offset <= start < one.offset + one.length:
            start = one.offset + one.length
    return start if start < end else None


def expect_block(extents: list[Extent], offset: int, what: str) -> None:
    missing = first_missing(extents, offset, offset + BLOCK_SIZE)
    expect(missing is None, f"{what}: byte {missing} is in no extent; a backup would lose it. Found {extents[:10]}")


@check(b.ChangedBlocks, data=True)
def written_blocks_are_reported_as_allocated(t: CheckContext) -> None:
    volume, made = volume_with_snapshot(t)

    found = t.client.allocated(made.handle)
    for offset in (0, volume.size - BLOCK_SIZE):
        expect_block(found, offset, f"allocated_blocks, after a write of {BLOCK_SIZE} bytes at {offset}")


@check(b.ChangedBlocks, data=True)
def blocks_that_an_earlier_snapshot_has_are_allocated_in_a_later_one_too(t: CheckContext) -> None:
    """A storage that adds a layer with each snapshot must report all layers."""
    volume, _base = volume_with_snapshot(t)
    t.write(volume, pattern("kit second layer"), middle(volume))

    found = t.client.allocated(snapshot_as_source(t, volume).handle)
    for offset, when in ((0, "before"), (volume.size - BLOCK_SIZE, "before"), (middle(volume), "after")):
        expect_block(found, offset, f"allocated_blocks of a second snapshot, at {offset}, written {when} the first")


@check(b.ChangedBlocks, data=True)
def ranges_that_are_zeroed_or_discarded_between_snapshots_are_reported(t: CheckContext) -> None:
    """By the kernel's own calls where the volume is a device: mkfs, fstrim and databases use them, not writes."""
    for method in ZEROING:
        volume = t.volume()
        start, length = middle(volume), min(MIB, volume.size - middle(volume))
        t.write(volume, pattern("kit zeroed") * (length // BLOCK_SIZE), start)
        base = snapshot_as_source(t, volume)
        if not zero(t, volume, method, start, length):
            t.note(f"the device does not accept {method}")
            continue
        zeroed = t.read(volume, length, start) == bytes(length)
        found = changed(t, base, snapshot_as_source(t, volume))

        lost = first_missing(found, start, start + length) if zeroed else None  # a discard may leave the data
        text = f"changed_blocks, after {length} bytes at {start} were zeroed by {method}"
        expect(lost is None, f"{text}: byte {lost} is in no extent; a backup would keep the old data")


@check(b.ChangedBlocks, data=True)
def blocks_changed_between_snapshots_are_reported(t: CheckContext) -> None:
    """Written for the first time, written again, and written with zeros."""
    volume, base = volume_with_snapshot(t)
    for offset, data in (
        (0, pattern("kit again")),
        (middle(volume), pattern("kit new")),
        (volume.size - BLOCK_SIZE, bytes(BLOCK_SIZE)),
    ):
        t.write(volume, data, offset)
    found = changed(t, base, snapshot_as_source(t, volume))

    for offset, how in ((0, "again"), (middle(volume), "for the first time"), (volume.size - BLOCK_SIZE, "with zeros")):
        expect_block(found, offset, f"changed_blocks, after a write of {BLOCK_SIZE} bytes {how} at {offset}")


@check(b.ChangedBlocks, needs=("large",), data=True)
def a_block_that_changed_after_a_long_equal_stretch_is_reported(t: CheckContext) -> None:
    """A storage that compares or lists so much at once has a page without any change before it."""
    volume = t.volume(size=t.storage.large)
    last = volume.size // BLOCK_SIZE * BLOCK_SIZE - BLOCK_SIZE
    equal = range(0, min(last, MARKED), MIB)
    t.write_pieces(volume, *((at, pattern("kit equal")) for at in equal), (last, pattern("kit old")))
    base = snapshot_as_source(t, volume)
    t.write(volume, pattern("kit new"), last)
    target = snapshot_as_source(t, volume)

    what = f"after {len(equal)} blocks of equal data, one in each MiB, and a write of {BLOCK_SIZE} bytes at {last}"
    expect_block(t.client.allocated(target.handle)[-1:], last, f"allocated_blocks, {what}")
    expect_block(changed(t, base, target)[-1:], last, f"changed_blocks, {what}")


@check(b.ChangedBlocks, b.Expand, data=True)
def blocks_written_behind_the_end_of_the_earlier_snapshot_are_reported(t: CheckContext) -> None:
    """The volume has grown between the two."""
    volume, base = volume_with_snapshot(t)
    grown = t.client.expand(volume.handle, SizeRange(required=volume.size + t.size)).size
    places = (volume.size, grown - BLOCK_SIZE)
    for offset in places:
        t.write(volume, pattern("kit grown"), offset)
    found = changed(t, base, snapshot_as_source(t, volume))

    for offset in places:
        expect_block(found, offset, f"changed_blocks, after the volume grew to {grown} and was written at {offset}")


@check(b.ChangedBlocks, data=True)
def changes_are_reported_across_snapshots_in_between(t: CheckContext) -> None:
    volume, base = volume_with_snapshot(t)
    t.write(volume, pattern("kit first change"), middle(volume))
    snapshot_as_source(t, volume)
    t.write(volume, pattern("kit second change"))

    found = changed(t, base, snapshot_as_source(t, volume))
    for offset in (0, middle(volume)):
        expect_block(found, offset, f"changed_blocks with a snapshot in between, after a write at {offset}")


@check(b.ChangedBlocks, data=True)
def snapshots_of_two_volumes_are_compared_or_refused(t: CheckContext) -> None:
    """What only the earlier one has is a change too: a backup would keep it."""
    volume, base = volume_with_snapshot(t)
    other = t.volume()
    t.write(other, pattern("kit other"), middle(other))
    target = snapshot_as_source(t, other)

    try:
        found = t.client.changed(base.handle, target.handle)
    except (t.client.kind_of(FailedPrecondition), t.client.kind_of(InvalidArgument)) as error:
        t.note(f"refused: {error}")
        return
    for offset, whose in ((0, "base"), (volume.size - BLOCK_SIZE, "base"), (middle(other), "target")):
        expect_block(found, offset, f"changed_blocks of two volumes, at {offset}, where only the {whose} has data")


def block_maps(t: CheckContext) -> Iterator[tuple[str, int, Callable[[int], BlockMap]]]:
    """Yield each kind of block map: what it is, the size of its snapshot, and a function that reads the map."""
    volume, base = volume_with_snapshot(t)
    secrets = t.storage.secrets
    yield "allocated_blocks", volume.size, lambda offset: t.backend.allocated_blocks(base.handle, offset, secrets)
    t.write(volume, pattern("kit change"), middle(volume))
    target = snapshot_as_source(t, volume)
    try:
        t.backend.changed_blocks(base.handle, target.handle, 0, secrets)
    except FailedPrecondition as error:
        t.note(f"changes are not tracked: {error}")
        return

    def changes(target: Snapshot) -> Callable[[int], BlockMap]:
        return lambda offset: t.backend.changed_blocks(base.handle, target.handle, offset, secrets)

    yield "changed_blocks", volume.size, changes(target)
    if b.Expand in t.features:
        grown = t.client.expand(volume.handle, SizeRange(required=volume.size + t.size)).size
        t.write(volume, pattern("kit grown"), grown - BLOCK_SIZE)
        yield "changed_blocks, after the volume grew", grown, changes(snapshot_as_source(t, volume))
        earlier = "allocated_blocks of a snapshot whose volume grew afterwards"
        yield earlier, volume.size, lambda offset: t.backend.allocated_blocks(target.handle, offset, secrets)


@check(b.ChangedBlocks, data=True, target=Target.BACKEND)
def extents_are_in_order_and_within_the_volume(t: CheckContext) -> None:
    for method, size, read in block_maps(t):
        found = read(0)
        same(found.size, size, f"{method}: BlockMap.size, compared with the volume's")
        kind = type(found.extents).__name__
        expect(isinstance(found.extents, Iterator), f"{method}: BlockMap.extents is a {kind}, not an iterator")
        _in_order(method, found)


def _in_order(method: str, found: BlockMap) -> None:
    """A block of fixed length may be the last of a volume that is not a multiple of it."""
    end = 0
    for one in found.extents:
        expect(one.length > 0, f"{method}: {one} is empty")
        expect(
            one.offset >= end,
            f"{method}: {one} follows an extent that ends at {end}; extents must be in order and must not overlap",
        )
        fixed = found.block_size
        expect(fixed in (0, one.length), f"{method}: {one} does not have the length of BlockMap.block_size, {fixed}")
        last = one.offset + (1 if fixed else one.length)
        expect(last <= found.size, f"{method}: {one} is beyond the end at {found.size}")
        end = one.offset + one.length


@check(b.ChangedBlocks, data=True, target=Target.BACKEND)
def a_block_map_can_be_continued_from_any_offset(t: CheckContext) -> None:
    """What ends at or before the offset is left out; everything else is as in the map from the start."""
    for method, size, read in block_maps(t):
        whole = list(read(0).extents)
        half = size // 2 // BLOCK_SIZE * BLOCK_SIZE
        for offset in (1, BLOCK_SIZE, half, half + 1, size - 1):
            part = list(read(offset).extents)
            early = [one for one in part if one.offset + one.length <= offset]
            same(early, [], f"{method} from byte {offset}: extents that end before it")
            for one in whole:
                missing = first_missing(part, max(one.offset, offset), one.offset + one.length)
                expect(
                    missing is None,
                    f"{method} from byte {offset}: byte {missing} is missing, but is in the map from the start",
                )


@check(b.ChangedBlocks, data=True)
def an_offset_beyond_the_end_is_refused(t: CheckContext) -> None:
    volume, base = volume_with_snapshot(t)
    target = snapshot_as_source(t, volume)

    with t.refused(OutOfRange, what="allocated_blocks from one byte beyond the end"):
        t.client.allocated(base.handle, volume.size + 1)
    with t.refused(OutOfRange, what="changed_blocks from one byte beyond the end"):
        changed(t, base, target, volume.size + 1)


@check(b.ChangedBlocks)
def blocks_of_a_deleted_snapshot_are_refused(t: CheckContext) -> None:
    volume = t.volume()
    old, made, gone = (snapshot_as_source(t, volume) for _ in range(3))
    for one in (old, gone):
        if not is_served(t, t.client.delete_snapshot, one.handle):
            raise CheckSkipped("the backend refuses to delete a snapshot while its volume has others")

    with t.refused(NotFound, what="allocated_blocks of a snapshot that was deleted"):
        t.client.allocated(gone.handle)
    with t.refused(NotFound, what="changed_blocks since a snapshot that was deleted"):
        changed(t, old, made)
    with t.refused(NotFound, what="changed_blocks up to a snapshot that was deleted"):
        changed(t, made, gone)
