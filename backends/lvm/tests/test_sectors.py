"""Volumes on disks with large sectors: a filesystem of smaller blocks is refused before mkfs would refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import InvalidArgument, NotFound, Volume

from .group import EXTENT, MIB, Group, NewGroup
from .volume_steps import delete, opened, volume_request

pytestmark = pytest.mark.devicemapper

BackendOn = Callable[..., LvmBackend]


def mkfs(group: Group, backend: LvmBackend, volume: Volume, block: int) -> bool:
    """Return whether mkfs makes a filesystem with blocks of this size."""
    with opened(backend, volume, block=False) as device:
        command = ("mkfs.ext4", "-q", "-F", "-b", str(block), str(device.path))
        return group.lvm.host.run(*command, ok=(0, 1)).status == 0


@pytest.mark.parametrize("kind", ["linear", "thin"])
def test_a_volume_whose_filesystem_has_smaller_blocks_than_the_disks_sectors_is_refused(
    kind: str, new_group: NewGroup, backend_on: BackendOn
) -> None:
    group = new_group(disks=2, size=128 * MIB, pool=64 * MIB, sector=4096)
    backend = backend_on(group)
    small = volume_request(backend, "small", 4 * EXTENT, type=kind)

    for largest in (1024, 2048):
        with pytest.raises(InvalidArgument, match=f"'blockSize': .*{largest}.* sectors of 4096 bytes"):
            backend.create_volume(replace(small, largest_sector=largest))
    with pytest.raises(NotFound):
        backend.find_volume("small")
    for name, largest in (("any", 0), ("equal", 4096)):
        volume = backend.create_volume(replace(volume_request(backend, name, 4 * EXTENT), largest_sector=largest))
        assert mkfs(group, backend, volume, 4096)
        assert not mkfs(group, backend, volume, 1024), "the refusal above is not needed"
        delete(backend, volume)


def test_disks_with_small_sectors_take_any_filesystem(group: Group, backend: BackendOn) -> None:
    volume = backend().create_volume(replace(volume_request(backend(), "small", 4 * EXTENT), largest_sector=1024))

    assert mkfs(group, backend(), volume, 1024)
    delete(backend(), volume)
