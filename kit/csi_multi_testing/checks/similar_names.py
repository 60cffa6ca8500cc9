"""Volumes of which one name begins or ends with another's: who looks for a name in a text finds the wrong one."""

from __future__ import annotations

from csi_multi.contract import NotFound, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext, pages
from ..operations.create import SEED, as_ready
from ..protocol import Target
from .creation import expect_unchanged
from .devices import open_device
from .sources import snapshot_as_source


def containing(t: CheckContext, name: str) -> list[Volume]:
    """Create volumes whose names contain this one, with data if it can be written."""
    made = [t.volume(one) for one in (f"{name}0", f"{name}-1", f"{name}.1", f"0{name}", f"a-{name}")]
    if not t.no_data_reason():
        for volume in made:
            t.fill(volume, volume.handle)
    return made


def expect_untouched(t: CheckContext, others: list[Volume], what: str) -> None:
    for volume in others:
        expect_unchanged(t, volume, what)
        if not t.no_data_reason():
            t.expect_filled(volume, volume.handle, volume.size, f"{what}, then {volume.handle!r}")


@check()
def a_change_of_a_volume_does_not_touch_one_whose_name_contains_its_name(t: CheckContext) -> None:
    name = t.name()
    others = containing(t, name)
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"find_volume({name!r}), beside volumes whose names contain it"):
            t.backend.find_volume(name)
    volume = t.volume(name)
    if b.Expand in t.features:
        t.client.expand(volume.handle, SizeRange(required=2 * t.size))
        expect_untouched(t, others, f"expand_volume of {name!r}")
    t.delete(volume)
    expect_untouched(t, others, f"delete_volume of {name!r}")
    if t.client.target is Target.BACKEND:
        t.backend.resume()
        expect_untouched(t, others, f"delete_volume of {name!r}, then resume")


@check(b.Snapshots)
def the_snapshots_of_a_volume_are_not_those_of_one_whose_name_contains_its_name(t: CheckContext) -> None:
    name = t.name()
    volume = t.volume(name)
    if not t.no_data_reason():
        t.fill(volume, SEED)
    other = t.volume(f"{name}0")
    cut = t.name("snapshot")
    mine, longer, theirs = t.snapshot(volume, cut), t.snapshot(volume, f"{cut}0"), t.snapshot(other, f"{cut}-1")
    if b.ListSnapshots in t.features:
        for one, wanted in ((volume, [mine, longer]), (other, [theirs])):
            found = sorted(each.handle for each in pages(t.client.list_snapshots, source=one.handle))
            same(found, sorted(each.handle for each in wanted), f"list_snapshots of {one.handle!r}")
    t.client.delete_snapshot(mine.handle)
    for kept in (longer, theirs):
        left = t.client.get_snapshot(kept.handle)
        same(as_ready(left), as_ready(kept), f"delete_snapshot of {cut!r}, then get_snapshot")
    if not t.no_data_reason():
        copy = t.copy(snapshot_as_source(t, volume))
        t.expect_filled(copy, SEED, volume.size, f"delete_snapshot of {cut!r}, then another snapshot, restored")


@check(needs=("devices",), data=True, target=Target.BACKEND)
def the_device_of_a_volume_is_not_that_of_one_whose_name_contains_its_name(t: CheckContext) -> None:
    """As if `losetup` or /proc/mounts were searched for the name."""
    name = t.name()
    others = containing(t, name)
    devices = [open_device(t, one) for one in others]
    volume = t.volume(name)
    beside = "beside open devices of volumes whose names contain its name"
    same(t.backend.find_device(volume.handle), None, f"find_device of {name!r}, {beside}")
    t.backend.close_device(volume.handle)
    device = open_device(t, volume)
    expect(device.path not in [one.path for one in devices], f"open_device of {name!r}, {beside}: one of those")
    t.backend.close_device(volume.handle)
    for one, opened in zip(others, devices, strict=True):
        same(t.backend.find_device(one.handle), opened, f"close_device of {name!r}, then find_device of another")
    if b.Attach in t.features:
        t.client.detach(volume.handle, None)
    t.delete(volume)
