"""Growth on real LVM: a RAID volume keeps its copies on different disks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import ResourceExhausted

from .group import EXTENT, Group
from .volume_steps import create, delete, expand, lv_name, raid_images

pytestmark = pytest.mark.devicemapper

BackendOn = Callable[..., LvmBackend]


def test_a_raid_copy_never_grows_onto_the_disk_of_another(five: Group, backend_on: BackendOn) -> None:
    """LVM itself keeps the copies on different disks per extension only. Without space on their disks, growth fails."""
    backend = backend_on(five)
    volume = create(backend, "v", EXTENT, type="raid1")
    (first,), second = raid_images(five, lv_name(volume))
    others = sorted({str(disk) for disk in five.disks} - {first} - second)
    for number, disk in enumerate([first, *others]):
        five.lvm.run("lvcreate", "-qq", "-an", "-Zn", "-Wn", "-l", "100%PVS", "-n", f"full{number}", five.name, disk)
    five.lvm.run("lvreduce", "-qq", "-f", "-l", "-2", f"{five.name}/full{len(others)}")  # not on the images' disks
    try:
        with pytest.raises(ResourceExhausted):
            expand(backend, volume, 2 * EXTENT)
        assert backend.get_volume(volume.handle).size == EXTENT
        assert set.intersection(*raid_images(five, lv_name(volume))) == set()
    finally:
        five.lvm.run("lvremove", "-qq", "-y", *(f"{five.name}/full{number}" for number in range(len(others) + 1)))
    delete(backend, volume)
