"""Volumes that start as a copy of a snapshot or of another volume: their bytes, their size, their independence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from csi_multi.contract import FailedPrecondition, NotFound, OutOfRange, Snapshot, StorageError, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern, source
from ..operations.base import describe_error, wait_until_ready
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from .creation import repeats

T = TypeVar("T")
Of = Volume | Snapshot
Take = Callable[[CheckContext, Volume], Of]  # from a volume to what is to be copied


def take_snapshot(t: CheckContext, volume: Volume) -> Snapshot:
    return wait_until_ready(t, t.snapshot(volume))


def itself(_t: CheckContext, volume: Volume) -> Volume:
    return volume


def method(of: Of) -> str:
    return "clone_volume" if isinstance(of, Volume) else "restore_volume"


def expect_success(what: str, ask: Callable[..., T], *words: Any, **more: Any) -> T:
    """Return what a question gives where a broken rule may show as a failure. Raises CheckFailed with what was tried."""
    try:
        return ask(*words, **more)
    except StorageError as error:
        raise CheckFailed(f"{what}: raised {describe_error(error)}, the contract requires it to succeed") from error


def is_served(t: CheckContext, delete: Callable[[str], None], handle: str) -> bool:
    """Whether a deletion was served: it may be refused as long as something depends on the thing."""
    try:
        delete(handle)
    except t.client.kind_of(FailedPrecondition):
        return False
    return True


def holds(t: CheckContext, take: Take) -> None:
    volume = source_volume(t)
    of = take(t, volume)
    copy = t.copy(of)
    expect(copy.size >= of.size, f"{method(of)}: {copy.size} bytes, made from {of.size}")
    same(t.client.get(copy.handle).size, copy.size, f"the size that get_volume tells, against {method(of)}'s")
    t.expect_filled(copy, SEED, volume.size, f"{method(of)}, the new volume")
    t.expect_filled(volume, SEED, volume.size, f"{method(of)}, the volume that was copied")


@check(b.Snapshots, data=True)
def a_restored_volume_holds_the_data_of_its_snapshot(t: CheckContext) -> None:
    holds(t, take_snapshot)


@check(b.Clone, data=True)
def a_cloned_volume_holds_the_data_of_its_source(t: CheckContext) -> None:
    holds(t, itself)


def grows(t: CheckContext, take: Take) -> None:
    """csi-spec CreateVolume: refused as OutOfRange, or as large as asked for, with the data."""
    volume = source_volume(t)
    of = take(t, volume)
    wanted, name, before = volume.size + t.size, t.name(), t.new()
    what = f"{method(of)}, asked for {wanted} bytes from {of.size}"
    try:
        copy = t.copy(of, name, wanted)
    except t.client.kind_of(OutOfRange) as error:
        same(t.new(), before, f"{what}: refused, but the storage changed")
        raise CheckSkipped(f"copies are not larger than what they are made from: {error}") from None
    expect(copy.size >= wanted, f"{what}: answered a size of {copy.size} bytes")
    same(t.client.get(copy.handle).size, copy.size, f"{what}: the size that get_volume tells")
    t.expect_filled(copy, SEED, volume.size, what)
    t.write(copy, pattern("kit end"), copy.size - BLOCK_SIZE)
    found = t.read(copy, BLOCK_SIZE, copy.size - BLOCK_SIZE)
    expect(found == pattern("kit end"), f"{what}: what is written to the last block is not there afterwards")
    t.expect_filled(copy, SEED, volume.size, f"{what}, after a write to its end")


@check(b.Snapshots, data=True)
def a_restored_volume_may_be_larger_than_its_snapshot(t: CheckContext) -> None:
    grows(t, take_snapshot)


@check(b.Clone, data=True)
def a_cloned_volume_may_be_larger_than_its_source(t: CheckContext) -> None:
    grows(t, itself)


def never_shrinks(t: CheckContext, take: Take) -> None:
    of = take(t, t.volume())
    name, before = t.name(), t.new()
    what = f"{method(of)} with a limit one byte below the {of.size} bytes of its source"

    with t.refused(OutOfRange, what=what):
        t.copy(of, name, 1, limit=of.size - 1)
    nothing_made(t, name, before, what)


def nothing_made(t: CheckContext, name: str, before: set[str], what: str) -> None:
    same(t.new(), before, f"{what}: refused, but the storage changed")
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_volume"):
            t.backend.find_volume(name)


@check(b.Snapshots)
def a_restored_volume_is_never_smaller_than_its_snapshot(t: CheckContext) -> None:
    never_shrinks(t, take_snapshot)


@check(b.Clone)
def a_cloned_volume_is_never_smaller_than_its_source(t: CheckContext) -> None:
    never_shrinks(t, itself)


def stands_apart(t: CheckContext, take: Take) -> None:
    volume = source_volume(t)
    of = take(t, volume)
    copy = t.copy(of)

    t.fill(copy, "kit copy")
    t.expect_filled(volume, SEED, volume.size, f"{method(of)}: the source, after writes to the new volume")
    t.fill(volume, "kit origin")
    t.expect_filled(copy, "kit copy", copy.size, f"{method(of)}: the new volume, after writes to its source")
    if isinstance(of, Snapshot):
        t.expect_filled(t.copy(of), SEED, volume.size, "restore_volume, again after writes to the first copy")


@check(b.Snapshots, data=True)
def a_restored_volume_and_its_origin_share_no_writes(t: CheckContext) -> None:
    stands_apart(t, take_snapshot)


@check(b.Clone, data=True)
def a_cloned_volume_and_its_source_share_no_writes(t: CheckContext) -> None:
    stands_apart(t, itself)


def needs_source(t: CheckContext, of: Of, delete: Callable[[str], None]) -> None:
    delete(of.handle)
    name, before = t.name(), t.new()
    what = f"{method(of)} from what was deleted"

    with t.refused(NotFound, what=what):
        t.copy(of, name)
    nothing_made(t, name, before, what)


@check(b.Snapshots)
def a_restore_from_a_deleted_snapshot_is_refused(t: CheckContext) -> None:
    needs_source(t, t.snapshot(t.volume()), t.client.delete_snapshot)


@check(b.Clone)
def a_clone_of_a_deleted_volume_is_refused(t: CheckContext) -> None:
    needs_source(t, t.volume(), t.client.delete)


def outlives(t: CheckContext, take: Take) -> None:
    """What is deleted may be what the copy still reads from; then the deletion is to be refused."""
    volume = source_volume(t)
    of = take(t, volume)
    spec = t.spec(size=0, source=source(of))
    copy = t.create(spec)
    delete, get = (
        (t.client.delete, t.client.get) if isinstance(of, Volume) else (t.client.delete_snapshot, t.client.get_snapshot)
    )
    gone = is_served(t, delete, of.handle)

    what = f"deleting what {method(of)} copied: {'served' if gone else 'refused'}"
    if not t.no_data():
        t.expect_filled(copy, SEED, volume.size, f"{what}, then the copy")
    if not gone:
        found = expect_success(f"{what}, then asked for it", get, of.handle)
        same(as_ready(found), as_ready(of), f"{what}, then it")
        return
    repeats(t, copy, spec, f"repeated after {method(of)}'s source was deleted")


@check(b.Snapshots)
def a_restored_volume_survives_the_deletion_of_its_snapshot(t: CheckContext) -> None:
    outlives(t, take_snapshot)


@check(b.Clone)
def a_cloned_volume_survives_the_deletion_of_its_source(t: CheckContext) -> None:
    outlives(t, itself)


@check(b.Snapshots, data=True)
def a_copy_of_a_copy_holds_the_data_of_both(t: CheckContext) -> None:
    """The head comes from the first, the tail was written to the second."""
    volume = source_volume(t)
    first = t.copy(take_snapshot(t, volume))
    t.write(first, pattern("kit second tail"), volume.size - BLOCK_SIZE)
    second = t.copy(take_snapshot(t, first))

    head, tail = t.read(second), t.read(second, BLOCK_SIZE, volume.size - BLOCK_SIZE)
    expect(head == pattern(SEED), "restore_volume of a snapshot of a restored volume: bytes of the first are missing")
    expect(
        tail == pattern("kit second tail"),
        "restore_volume of a snapshot of a restored volume: bytes written to that volume are missing",
    )
