"""Copies of a snapshot or of a volume: their data, their size, their independence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from csi_multi.contract import FailedPrecondition, NotFound, OutOfRange, Snapshot, StorageError, Volume
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern, source
from ..operations.base import attempt, describe_error, retry, wait_until_ready
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from .creation import expect_repeats, expect_unchanged

T = TypeVar("T")
CopySource = Volume | Snapshot
ChooseSource = Callable[[CheckContext, Volume], CopySource]  # from a volume to the source of a copy


def snapshot_as_source(t: CheckContext, volume: Volume) -> Snapshot:
    return wait_until_ready(t, t.snapshot(volume))


def volume_as_source(_t: CheckContext, volume: Volume) -> Volume:
    return volume


def method(of: CopySource) -> str:
    return "clone_volume" if isinstance(of, Volume) else "restore_volume"


def expect_success(what: str, ask: Callable[..., T], *words: Any, **more: Any) -> T:
    """Return the answer of a call that must succeed. Raises CheckFailed with the description of the call."""
    try:
        return ask(*words, **more)
    except StorageError as error:
        raise CheckFailed(f"{what}: raised {describe_error(error)}, the contract requires it to succeed") from error


def is_served(t: CheckContext, delete: Callable[[str], None], handle: str) -> bool:
    """Whether a deletion was served: it may be refused while something depends on the resource."""
    try:
        delete(handle)
    except t.client.kind_of(FailedPrecondition):
        return False
    return True


def expect_data_copied(t: CheckContext, choose_source: ChooseSource) -> None:
    volume = source_volume(t)
    of = choose_source(t, volume)
    copy = t.copy(of)
    expect(copy.size >= of.size, f"{method(of)}: the copy has {copy.size} bytes, its source {of.size}")
    same(t.client.get(copy.handle).size, copy.size, f"the size of get_volume, compared with {method(of)}'s")
    t.expect_filled(copy, SEED, volume.size, f"{method(of)}, the new volume")
    t.expect_filled(volume, SEED, volume.size, f"{method(of)}, the volume that was copied")


@check(b.Snapshots, data=True)
def a_restored_volume_holds_the_data_of_its_snapshot(t: CheckContext) -> None:
    expect_data_copied(t, snapshot_as_source)


@check(b.Clone, data=True)
def a_cloned_volume_holds_the_data_of_its_source(t: CheckContext) -> None:
    expect_data_copied(t, volume_as_source)


def expect_larger_copy(t: CheckContext, choose_source: ChooseSource) -> None:
    """csi-spec CreateVolume: refused as OutOfRange, or as large as requested, with the data."""
    volume = source_volume(t)
    of = choose_source(t, volume)
    wanted, name, before = volume.size + t.size, t.name(), t.new_resources()
    what = f"{method(of)}, {wanted} bytes requested from a source of {of.size}"
    try:
        copy = t.copy(of, name, wanted)
    except t.client.kind_of(OutOfRange) as error:
        same(t.new_resources(), before, f"{what}: refused, but the storage changed")
        raise CheckSkipped(f"the backend creates no copy that is larger than its source: {error}") from None
    expect(copy.size >= wanted, f"{what}: returned a size of {copy.size} bytes")
    same(t.client.get(copy.handle).size, copy.size, f"{what}: the size of get_volume")
    t.expect_filled(copy, SEED, volume.size, what)
    t.write(copy, pattern("kit end"), copy.size - BLOCK_SIZE)
    found = t.read(copy, BLOCK_SIZE, copy.size - BLOCK_SIZE)
    expect(found == pattern("kit end"), f"{what}: data written to the last block cannot be read back")
    t.expect_filled(copy, SEED, volume.size, f"{what}, after a write to its end")


@check(b.Snapshots, data=True)
def a_restored_volume_may_be_larger_than_its_snapshot(t: CheckContext) -> None:
    expect_larger_copy(t, snapshot_as_source)


@check(b.Clone, data=True)
def a_cloned_volume_may_be_larger_than_its_source(t: CheckContext) -> None:
    expect_larger_copy(t, volume_as_source)


def expect_no_smaller_copy(t: CheckContext, choose_source: ChooseSource) -> None:
    of = choose_source(t, t.volume())
    name, before = t.name(), t.new_resources()
    what = f"{method(of)} with a limit one byte below the {of.size} bytes of its source"

    with t.refused(OutOfRange, what=what):
        t.copy(of, name, 1, limit=of.size - 1)
    expect_nothing_created(t, name, before, what)


def expect_nothing_created(t: CheckContext, name: str, before: set[str], what: str) -> None:
    same(t.new_resources(), before, f"{what}: refused, but the storage changed")
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_volume"):
            t.backend.find_volume(name)


@check(b.Snapshots)
def a_restored_volume_is_never_smaller_than_its_snapshot(t: CheckContext) -> None:
    expect_no_smaller_copy(t, snapshot_as_source)


@check(b.Clone)
def a_cloned_volume_is_never_smaller_than_its_source(t: CheckContext) -> None:
    expect_no_smaller_copy(t, volume_as_source)


def expect_independent(t: CheckContext, choose_source: ChooseSource) -> None:
    """The source is written first: blocks that the copy has written itself hide those that it shares."""
    volume = source_volume(t)
    of = choose_source(t, volume)
    copy = t.copy(of)

    t.fill(volume, "kit origin")
    t.expect_filled(copy, SEED, volume.size, f"{method(of)}: the new volume, after writes to its source")
    t.fill(copy, "kit copy")
    t.expect_filled(volume, "kit origin", volume.size, f"{method(of)}: the source, after writes to the new volume")
    t.fill(volume, "kit later")
    t.expect_filled(copy, "kit copy", copy.size, f"{method(of)}: the new volume, after both were written")
    if isinstance(of, Snapshot):
        t.expect_filled(t.copy(of), SEED, volume.size, "restore_volume, repeated after writes to the first copy")


@check(b.Snapshots, data=True)
def a_restored_volume_and_its_origin_share_no_writes(t: CheckContext) -> None:
    expect_independent(t, snapshot_as_source)


@check(b.Clone, data=True)
def a_cloned_volume_and_its_source_share_no_writes(t: CheckContext) -> None:
    expect_independent(t, volume_as_source)


def expect_source_required(t: CheckContext, of: CopySource, delete: Callable[[str], None]) -> None:
    delete(of.handle)
    name, before = t.name(), t.new_resources()
    what = f"{method(of)} from a deleted source"

    with t.refused(NotFound, what=what):
        t.copy(of, name)
    expect_nothing_created(t, name, before, what)


@check(b.Snapshots)
def a_restore_from_a_deleted_snapshot_is_refused(t: CheckContext) -> None:
    expect_source_required(t, t.snapshot(t.volume()), t.client.delete_snapshot)


@check(b.Clone)
def a_clone_of_a_deleted_volume_is_refused(t: CheckContext) -> None:
    expect_source_required(t, t.volume(), t.client.delete)


def expect_copy_survives(t: CheckContext, choose_source: ChooseSource) -> None:
    """The copy may still read from its source; then the deletion of the source must be refused."""
    volume = source_volume(t)
    of = choose_source(t, volume)
    spec = t.spec(f"{volume.stamp.name}-copy", 0, source=source(of))  # a name that begins with the source's
    copy = t.create(spec)
    delete, get = (
        (t.client.delete, t.client.get) if isinstance(of, Volume) else (t.client.delete_snapshot, t.client.get_snapshot)
    )
    gone = is_served(t, delete, of.handle)

    what = f"deleting what {method(of)} copied: {'served' if gone else 'refused'}"
    if not t.no_data_reason():
        t.expect_filled(copy, SEED, volume.size, f"{what}, then the copy")
    if not gone:
        found = expect_success(f"{what}, then read of the source", get, of.handle)
        same(as_ready(found), as_ready(of), f"{what}, then the source")
        return
    expect_repeats(t, copy, spec, f"repeated after {method(of)}'s source was deleted")
    t.client.restart()  # what a deletion leaves to the background is done now
    expect_unchanged(t, copy, f"{what}, then a restart")
    if not t.no_data_reason():
        t.expect_filled(copy, SEED, volume.size, f"{what}, then the copy after a restart")


@check(b.Snapshots)
def a_restored_volume_survives_the_deletion_of_its_snapshot(t: CheckContext) -> None:
    expect_copy_survives(t, snapshot_as_source)


@check(b.Clone)
def a_cloned_volume_survives_the_deletion_of_its_source(t: CheckContext) -> None:
    expect_copy_survives(t, volume_as_source)


@check(b.Snapshots, data=True)
def a_copy_of_a_copy_holds_the_data_of_both(t: CheckContext) -> None:
    """The head comes from the first volume, the tail was written to the second."""
    volume = source_volume(t)
    first = t.copy(snapshot_as_source(t, volume))
    t.write(first, pattern("kit second tail"), volume.size - BLOCK_SIZE)
    second = t.copy(snapshot_as_source(t, first))

    head, tail = t.read(second), t.read(second, BLOCK_SIZE, volume.size - BLOCK_SIZE)
    expect(
        head == pattern(SEED), "restore_volume of a snapshot of a restored volume: data of the first volume is missing"
    )
    expect(
        tail == pattern("kit second tail"),
        "restore_volume of a snapshot of a restored volume: data written to that volume is missing",
    )


@check(b.Snapshots, data=True)
def a_snapshot_that_is_not_ready_is_restored_whole_or_later(t: CheckContext) -> None:
    """A retryable error, or a volume with all data: what is not copied yet is not zeros."""
    volume = source_volume(t)
    cut = t.snapshot(volume)
    if cut.ready:
        raise CheckSkipped("a snapshot is ready as soon as create_snapshot returns it")
    spec, what = t.spec(size=0, source=source(cut)), "restore_volume of a snapshot that is not ready"
    copy, error = attempt(lambda: t.create(spec))
    later = (*NOT_FINAL, FailedPrecondition)
    if error and not isinstance(error, tuple(t.client.kind_of(one) for one in later)):
        names = ", ".join(one.__name__ for one in later)
        raise CheckFailed(f"{what}: raised {describe_error(error)}, the contract requires one of {names}") from error
    if copy:
        t.expect_filled(copy, SEED, volume.size, what)
    wait_until_ready(t, cut)
    copy = retry(lambda: t.create(spec), f"{what}, repeated when it is ready")
    t.expect_filled(copy, SEED, volume.size, f"{what}, repeated when it is ready")
