"""Groups of thick volumes, on real LVM: members are snapshots like others, and have the space that the class says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from csi_multi_lvm.backend import LvmBackend
from csi_multi_lvm.config import SnapshotParameters

from csi_multi.contract import GroupSnapshotRequest, InUse, ResourceExhausted

from .faulty import clear
from .group import EXTENT, MIB, Group, Lvm, volume_group
from .volume_steps import copy, create, delete, fill, opened, read, refused, stamp, write

pytestmark = pytest.mark.devicemapper

SIZE = 4 * EXTENT
Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("thick"), disks=1, size=256 * MIB, pool=32 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def nothing_left(group: Group) -> Iterator[None]:
    yield
    clear(group)


def test_members_of_thick_and_thin_volumes_hold_their_data_and_can_be_restored(backend_on: Make, group: Group) -> None:
    ours = backend_on(group)
    closed = create(ours, "closed", SIZE, type="linear", wipe="none")
    used = create(ours, "used", SIZE, type="linear", wipe="none")
    thin = create(ours, "thin", SIZE, type="thin")
    with opened(ours, closed) as device:
        fill(device.path)
        before = {closed.handle: read(device.path)}
    with opened(ours, used) as device, opened(ours, thin) as other:
        fill(device.path, EXTENT)
        fill(other.path, 0, EXTENT)
        before |= {used.handle: read(device.path), thin.handle: read(other.path)}
        sources = tuple(one.handle for one in (closed, used, thin))
        parameters = SnapshotParameters(snapshot_size=str(2 * EXTENT))
        made = ours.create_group_snapshot(
            GroupSnapshotRequest(stamp=stamp(ours, "g"), sources=sources, parameters=parameters)
        )
        fill(device.path, 0, EXTENT)
        write(other.path, 0, 2)
        with refused(InUse, "has snapshots that depend on it"):
            delete(ours, closed)

    words = ("--units", "b", "--nosuffix", "-o", "lv_size", "-S", "origin=csi-used")
    assert group.lvm.run("lvs", "--noheadings", *words, group.name) == [str(2 * EXTENT)]
    for number, member in enumerate(made.snapshots):
        restored = copy(ours, f"restored-{number}", member, type="linear")
        with opened(ours, restored, block=False) as device:
            assert read(device.path) == before[member.source]
        delete(ours, restored)
    ours.delete_group_snapshot(made.handle, {})
    delete(ours, closed, used, thin)


def test_a_group_for_whose_last_member_there_is_no_space_leaves_nothing(backend_on: Make, group: Group) -> None:
    ours = backend_on(group)
    volumes = [create(ours, name, 18 * EXTENT, type="linear") for name in ("one", "two")]
    sources = tuple(one.handle for one in volumes)
    with refused(ResourceExhausted):
        ours.create_group_snapshot(GroupSnapshotRequest(stamp=stamp(ours, "g"), sources=sources))

    assert group.left() == ["csi-one", "csi-two"]
    delete(ours, *volumes)
