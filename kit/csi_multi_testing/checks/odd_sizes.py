"""Sizes that are no multiple of a MiB: who copies in larger parts has a shorter one at the end."""

from __future__ import annotations

from csi_multi.contract import OutOfRange, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, source
from ..operations.create import SEED
from ..storage import MIB
from .expand import expect_expanded
from .sources import ChooseSource, method, snapshot_as_source, volume_as_source

ODD_RANGES = ((1, 0), (1, 1), (0, 1), (1, MIB + 1), (1, 4 * MIB + 513))  # bytes more than the source: required, limit


def odd_size(size: int) -> int:
    if size % MIB == 0:
        raise CheckSkipped("the storage creates only multiples of a MiB")
    return size


def odd_volume(t: CheckContext) -> Volume:
    """Return a volume with data at both ends."""
    volume = t.volume(size=t.size + 1)
    odd_size(volume.size)
    t.fill(volume, SEED)
    return volume


def expect_odd_copied(t: CheckContext, choose_source: ChooseSource) -> None:
    volume = odd_volume(t)
    of = choose_source(t, volume)
    copy = t.copy(of)
    what = f"{method(of)} of {volume.size} bytes"
    expect(copy.size >= volume.size, f"{what}: the copy has {copy.size} bytes")
    t.expect_filled(copy, SEED, volume.size, f"{what}, the copy")


def expect_odd_range_kept(t: CheckContext, choose_source: ChooseSource) -> None:
    """Request copies of sizes that are no multiple of a block, with a limit that is none either."""
    volume = t.volume()
    of = choose_source(t, volume)
    for more, most in ODD_RANGES:
        wanted = SizeRange(required=volume.size + more, limit=volume.size + most if most else 0)
        try:
            copy = t.create(t.spec(size=wanted.required, limit=wanted.limit, source=source(of)))
        except t.client.kind_of(OutOfRange):
            continue  # no size that the storage can make is in the range, or its copies cannot be larger
        what = f"{method(of)} with a required size of {wanted.required} bytes and a limit of {wanted.limit or 'none'}"
        expect(wanted.holds(copy.size), f"{what}: the copy has {copy.size} bytes")
        same(t.client.get(copy.handle).size, copy.size, f"{what}: the size of get_volume")
        t.delete(copy)


@check(b.Clone)
def a_clone_of_an_odd_range_of_sizes_is_in_it_or_refused(t: CheckContext) -> None:
    expect_odd_range_kept(t, volume_as_source)


@check(b.Snapshots)
def a_restored_volume_of_an_odd_range_of_sizes_is_in_it_or_refused(t: CheckContext) -> None:
    expect_odd_range_kept(t, snapshot_as_source)


@check(b.Clone, data=True)
def a_clone_of_an_odd_size_is_complete(t: CheckContext) -> None:
    expect_odd_copied(t, volume_as_source)


@check(b.Snapshots, data=True)
def a_restored_volume_of_an_odd_size_is_complete(t: CheckContext) -> None:
    expect_odd_copied(t, snapshot_as_source)


@check(b.Expand, data=True)
def an_expansion_from_an_odd_size_to_another_keeps_all_data(t: CheckContext) -> None:
    volume = odd_volume(t)
    size = expect_expanded(t, volume, SizeRange(required=volume.size + t.size + 1)).size
    grown = t.client.get(volume.handle)
    same(grown.size, odd_size(size), "expand_volume to an odd size, then the size of get_volume")
    what = f"expand_volume from {volume.size} to {size} bytes"
    t.expect_filled(grown, SEED, volume.size, what)
    t.fill(grown, "kit grown")
    t.expect_filled(grown, "kit grown", size, f"{what}, then written at both ends")
