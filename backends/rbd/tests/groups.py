"""Steps of the tests of groups: create them, and list their members."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import GroupSnapshotParameters

from csi_multi.contract import GroupSnapshot, GroupSnapshotRequest, NotFound, PageRequest, Volume

from .ceph import Cluster
from .volumes import NONE, create, everything, stamp


def group_request(backend: RbdBackend, name: str, *volumes: Volume) -> GroupSnapshotRequest:
    sources = tuple(one.handle for one in volumes)
    return GroupSnapshotRequest(stamp=stamp(backend, name), sources=sources, parameters=GroupSnapshotParameters())


def group(backend: RbdBackend, name: str, *volumes: Volume) -> GroupSnapshot:
    return backend.create_group_snapshot(group_request(backend, name, *volumes))


def listed(backend: RbdBackend) -> set[str]:
    return {one.handle for one in backend.list_snapshots(PageRequest()).items}


def members(made: GroupSnapshot) -> set[str]:
    return {one.handle for one in made.snapshots}


def found(backend: RbdBackend, made: GroupSnapshot) -> set[str]:
    """Return the members that are found one by one."""
    handles = set[str]()
    for one in made.snapshots:
        try:
            handles.add(backend.get_snapshot(one.handle).handle)
        except NotFound:
            continue
    return handles


def rbd_group(backend: RbdBackend, name: str) -> str:
    """Return the name of the group of rbd, and of the image, of a group snapshot."""
    return labels.name_prefix(labels.GROUP, backend.setting.driver, backend.setting.cluster) + name


@contextmanager
def nothing_left(cluster: Cluster, backend: RbdBackend) -> Iterator[tuple[Volume, Volume]]:
    """Yield two volumes; afterwards nothing but them is there."""
    volumes = create(backend, "v"), create(backend, "w")
    before = everything(cluster, backend)
    yield volumes
    assert everything(cluster, backend) == before


def delete_group(backend: RbdBackend, made: GroupSnapshot) -> None:
    backend.delete_group_snapshot(made.handle, NONE)
