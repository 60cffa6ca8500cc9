"""Steps of these tests: create, copy, fill, read and delete volumes and snapshots, and list what is left."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Parameters

from csi_multi.contract import (
    AccessMode,
    Busy,
    Capability,
    ExpandRequest,
    Mount,
    ResourceExhausted,
    SizeRange,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    Strings,
    Timeout,
    TopologyRequirement,
    Unavailable,
    Volume,
    VolumeRequest,
)

from . import contents
from .ceph import Cluster

T = TypeVar("T")
MIB = 2**20
SIZE = 16 * MIB
NONE: Strings = {}
MOUNTED = (Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount()),)
BACKGROUND_SECONDS = 90.0  # seconds for the background to be done: a client that crashed is in its way for 30, twice


def stamp(backend: RbdBackend, name: str, source: Source | None = None) -> Stamp:
    setting = backend.setting
    return Stamp(driver=setting.driver, cluster=setting.cluster, name=name, digest="d", source=source)


def volume_request(
    backend: RbdBackend,
    name: str,
    size: int = SIZE,
    *,
    limit: int = 0,
    secrets: Strings = NONE,
    topology: TopologyRequirement | None = None,
    **parameters: Any,
) -> VolumeRequest:
    return VolumeRequest(
        stamp=stamp(backend, name),
        size=SizeRange(required=size, limit=limit),
        parameters=Parameters(**parameters),
        secrets=secrets,
        topology=topology,
    )


def create(backend: RbdBackend, name: str, size: int = SIZE, **more: Any) -> Volume:
    """Make a volume as its StorageClass parameters say."""
    return backend.create_volume(volume_request(backend, name, size, **more))


def copy_request(
    backend: RbdBackend,
    name: str,
    source: Volume | Snapshot,
    size: int = 0,
    *,
    limit: int = 0,
    secrets: Strings = NONE,
    capabilities: tuple[Capability, ...] = (),
    **parameters: Any,
) -> VolumeRequest:
    """Ask for a clone of a volume, or for a snapshot's data."""
    kind = SourceKind.VOLUME if isinstance(source, Volume) else SourceKind.SNAPSHOT
    return VolumeRequest(
        stamp=stamp(backend, name, Source(kind=kind, handle=source.handle)),
        size=SizeRange(required=size, limit=limit),
        capabilities=capabilities,
        parameters=Parameters(**parameters),
        secrets=secrets,
    )


def copy(backend: RbdBackend, name: str, source: Volume | Snapshot, size: int = 0, **more: Any) -> Volume:
    """Clone a volume, or restore a snapshot."""
    request = copy_request(backend, name, source, size, **more)
    return backend.clone_volume(request) if isinstance(source, Volume) else backend.restore_volume(request)


def retried(act: Callable[[], T]) -> T:
    """Ask again, as an orchestrator does, while the answer is to come back later."""
    ends = time.monotonic() + BACKGROUND_SECONDS
    while True:
        try:
            return act()
        except (Busy, Unavailable, Timeout, ResourceExhausted):
            if time.monotonic() > ends:
                raise
            time.sleep(0.5)


def snapshot_request(backend: RbdBackend, name: str, source: Volume, *, secrets: Strings = NONE) -> SnapshotRequest:
    return SnapshotRequest(stamp=stamp(backend, name), source=source.handle, secrets=secrets)


def snapshot(backend: RbdBackend, name: str, source: Volume, *, secrets: Strings = NONE) -> Snapshot:
    return backend.create_snapshot(snapshot_request(backend, name, source, secrets=secrets))


def expand(backend: RbdBackend, volume: Volume, size: int, *, limit: int = 0) -> int:
    request = ExpandRequest(handle=volume.handle, size=SizeRange(required=size, limit=limit))
    return backend.expand_volume(request).size


def delete(backend: RbdBackend, *ones: Volume | Snapshot, secrets: Strings = NONE) -> None:
    for one in ones:
        if isinstance(one, Volume):
            backend.delete_volume(one.handle, secrets)
        else:
            backend.delete_snapshot(one.handle, secrets)


def image(backend: RbdBackend, one: Volume | Snapshot | str) -> str:
    """Return the name of the image of a volume or snapshot; of a volume, if only its handle is given."""
    kind = labels.SNAPSHOT if isinstance(one, Snapshot) else labels.VOLUME
    prefix = labels.name_prefix(kind, backend.setting.driver, backend.setting.cluster)
    return prefix + _handle(one).rpartition("/")[2]


def spec(backend: RbdBackend, one: Volume | Snapshot | str) -> str:
    pool = _handle(one).rpartition("/")[0] or backend.config.pool
    return "/".join(filter(None, (pool, backend.config.namespace, image(backend, one))))


def _handle(one: Volume | Snapshot | str) -> str:
    return one if isinstance(one, str) else one.handle


def write(cluster: Cluster, backend: RbdBackend, one: Volume | str, data: bytes, at: int = 0) -> None:
    contents.write(cluster, spec(backend, one), at, data)


def read(cluster: Cluster, backend: RbdBackend, one: Volume | Snapshot, length: int, at: int = 0) -> bytes:
    return contents.read(cluster, spec(backend, one), at, length)


def info(cluster: Cluster, backend: RbdBackend, one: Volume | Snapshot | str) -> dict[str, Any]:
    """Return what the cluster itself says about an image."""
    told: dict[str, Any] = json.loads(cluster.rbd("info", "--format", "json", spec(backend, one)))
    return told


def rados(cluster: Cluster, backend: RbdBackend, *words: str, given: bytes = b"") -> str:
    """Look at an image's objects, or change them: `given` is any bytes."""
    where = ("--pool", cluster.pool, "--namespace", backend.config.namespace)
    return cluster.run_bytes("rados", *where, *words, given=given).decode()


def everything(cluster: Cluster, backend: RbdBackend) -> list[str]:
    """Return all that is in the namespace once the background has nothing left to do."""
    assert backend.wait_until_idle(BACKGROUND_SECONDS)
    return cluster.everything(backend.config.namespace)


@contextmanager
def held(cluster: Cluster, backend: RbdBackend, one: Volume | Snapshot | str) -> Iterator[str]:
    """Let another process have an image open, as a node does that maps it; yield the address that it has."""
    conf = ("--conf", str(cluster.directory / "ceph.conf"))
    header = f"rbd_header.{info(cluster, backend, one)['id']}"
    command = ("rados", *conf, "--pool", cluster.pool, "--namespace", backend.config.namespace, "watch", header)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield _watcher(cluster, spec(backend, one))
    finally:
        process.communicate(
            b"\n", timeout=BACKGROUND_SECONDS
        )  # it closes the image, so its watch does not have to time out


def _watcher(cluster: Cluster, image: str) -> str:
    ends = time.monotonic() + BACKGROUND_SECONDS
    while time.monotonic() < ends:
        watchers = json.loads(cluster.rbd("status", "--format", "json", image))["watchers"]
        if watchers:
            return str(watchers[0]["address"])
    raise AssertionError(f"nobody watches {image}")
