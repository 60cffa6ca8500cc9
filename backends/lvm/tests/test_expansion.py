"""Growth on real LVM: a RAID volume keeps its copies on different disks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import ResourceExhausted

from .group import EXTENT, Group
from .volume_steps import (
    create,
    delete,
    expand,
    lv_name,
)

pytestmark = pytest.mark.devicemapper

BackendOn = Callable[..., LvmBackend]


def legs(group: Group, name: str) -> list[set[str]]:
    """Return the disks that each leg of a RAID volume lies on, its metadata with its data."""
    fields = ("--noheadings", "--separator", "|", "-o", "lv_name,seg_pe_ranges")
    found: dict[str, set[str]] = {}
    for line in group.lvm.run("lvs", "-a", "--segments", *fields, "-S", f'lv_name=~"^{name}_r"', group.name):
        part, _, ranges = line.partition("|")
        disks = {place.partition(":")[0] for place in ranges.split() if place.startswith("/")}
        found.setdefault(part.strip("[]").split("_")[-1], set()).update(disks)
    return list(found.values())


def test_a_copy_never_grows_onto_the_disk_of_another(five: Group, backend_on: BackendOn) -> None:
    """LVM would: its legs are kept apart in each piece only. Without room beside each, growth is refused."""
    backend = backend_on(five)
    volume = create(backend, "v", EXTENT, type="raid1")
    (first,), second = legs(five, lv_name(volume))
    others = sorted({str(disk) for disk in five.disks} - {first} - second)
    for number, disk in enumerate([first, *others]):
        five.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "100%PVS", "-n", f"full{number}", five.name, disk)
    five.lvm.run("lvreduce", "-qq", "-f", "-l", "-2", f"{five.name}/full{len(others)}")  # room, but not beside the legs
    try:
        with pytest.raises(ResourceExhausted):
            expand(backend, volume, 2 * EXTENT)
        assert backend.get_volume(volume.handle).size == EXTENT
        assert set.intersection(*legs(five, lv_name(volume))) == set()
    finally:
        five.lvm.run("lvremove", "-qq", "-y", *(f"{five.name}/full{number}" for number in range(len(others) + 1)))
    delete(backend, volume)
