"""Volumes that have grown: copied, used for the first time, or themselves copies. Their size is no longer the first."""

from __future__ import annotations

from csi_multi.contract import OutOfRange, ResourceExhausted, SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import BLOCK_SIZE, CheckContext, pattern
from ..operations.base import attempt
from ..operations.create import SEED, source_volume
from ..protocol import Target
from .capacity import largest, largest_that_is_quick
from .expand import expect_expanded
from .reused_space import expect_zeros, leave_used_space, places, require_zeros
from .sources import ChooseSource, is_served, method, snapshot_as_source, volume_as_source


def grow(t: CheckContext, volume: Volume) -> Volume:
    expect_expanded(t, volume, SizeRange(required=volume.size + t.size))
    return t.client.get(volume.handle)


def write_end(t: CheckContext, volume: Volume) -> None:
    t.write(volume, pattern("kit grown"), volume.size - BLOCK_SIZE)


def expect_end(t: CheckContext, volume: Volume, size: int, what: str) -> None:
    found = t.read(volume, BLOCK_SIZE, size - BLOCK_SIZE)
    expect(found == pattern("kit grown"), f"{what}: what was written to the end of the grown volume is not there")


def expect_grown_copied(t: CheckContext, choose_source: ChooseSource) -> None:
    first = source_volume(t)
    grown = grow(t, first)
    write_end(t, grown)
    of = choose_source(t, grown)
    copy = t.copy(of)
    what = f"{method(of)} of a volume that has grown from {first.size} to {grown.size} bytes"
    if isinstance(of, Snapshot):
        expect(of.size <= grown.size, f"{what}: Snapshot.size is {of.size}")
    expect(copy.size >= grown.size, f"{what}: the copy has {copy.size} bytes")
    t.expect_filled(copy, SEED, first.size, f"{what}, the copy")
    expect_end(t, copy, grown.size, what)


@check(b.Expand, b.Snapshots, data=True)
def a_snapshot_of_a_grown_volume_is_of_all_of_it(t: CheckContext) -> None:
    expect_grown_copied(t, snapshot_as_source)


@check(b.Expand, b.Clone, data=True)
def a_clone_of_a_grown_volume_is_of_all_of_it(t: CheckContext) -> None:
    expect_grown_copied(t, volume_as_source)


def expect_copy_grows(t: CheckContext, choose_source: ChooseSource) -> None:
    """It may share its data with its source up to its first size, and what is beyond is its own."""
    volume = source_volume(t)
    of = choose_source(t, volume)
    copy = grow(t, t.copy(of))
    what = f"{method(of)}, then expand_volume of the copy"
    t.expect_filled(copy, SEED, volume.size, what)
    write_end(t, copy)
    delete = t.client.delete_snapshot if isinstance(of, Snapshot) else t.client.delete
    what = f"{what}, then the deletion of its source, {'served' if is_served(t, delete, of.handle) else 'refused'}"
    t.expect_filled(copy, SEED, volume.size, what)
    expect_end(t, copy, copy.size, what)
    same(t.client.get(copy.handle), copy, f"{what}, then get_volume")


@check(b.Expand, b.Snapshots, data=True)
def a_restored_volume_keeps_its_data_when_it_grows(t: CheckContext) -> None:
    expect_copy_grows(t, snapshot_as_source)


@check(b.Expand, b.Clone, data=True)
def a_clone_keeps_its_data_when_it_grows(t: CheckContext) -> None:
    expect_copy_grows(t, volume_as_source)


@check(b.Expand, data=True, target=Target.BACKEND)
def a_volume_that_grows_before_its_first_use_shows_nothing_of_a_deleted_one(t: CheckContext) -> None:
    """The space that it gets may have been used before. It is formatted later, as a new volume is."""
    require_zeros(t, t.volume())
    for _ in range(2):
        leave_used_space(t, size=2 * t.size)
    volume = t.volume()
    grown = grow(t, volume)
    require_zeros(t, grown)
    expect_zeros(t, grown, places(0, grown.size), f"a new volume that has grown from {volume.size} to {grown.size}")


@check(b.Capacity, b.Expand)
def a_volume_grows_by_what_the_capacity_reports(t: CheckContext) -> None:
    """It needs space for what is added, not for all of it once more."""
    most = largest_that_is_quick(t)
    volume = t.volume(size=most // 4 * 3)
    free = largest(t.client.capacity())
    wanted = volume.size + free // 2
    if free < 2 * t.size or wanted > most:
        raise CheckSkipped(
            f"capacity() reports {free} bytes beside a volume of {volume.size}: too little for an expansion"
        )
    what = f"expand_volume from {volume.size} to {wanted} bytes, while capacity() reports {free}"
    done, error = attempt(lambda: t.client.expand(volume.handle, SizeRange(required=wanted)))
    if isinstance(error, ResourceExhausted | OutOfRange):
        if largest(t.client.capacity()) < free // 2:
            raise CheckSkipped("others use space of this storage at the same time") from error
        raise CheckFailed(f"{what}: {error}") from error
    if error:
        raise error
    same(t.client.get(volume.handle).size, done.size if done else 0, f"{what}, then the size of get_volume")
