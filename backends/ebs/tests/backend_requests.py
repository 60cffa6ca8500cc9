"""Backends on the simulated EC2, and the requests that the core sends them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config, GroupSnapshotParameters, MutableParameters, Parameters, SnapshotParameters

from csi_multi.contract import (
    AccessMode,
    AttachRequest,
    Capability,
    ExpandRequest,
    GroupSnapshotRequest,
    ModifyRequest,
    Mount,
    Node,
    Setting,
    SizeRange,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    TopologyRequirement,
    Volume,
    VolumeRequest,
)
from csi_multi.contract.params import parse
from csi_multi.host.command import LocalHost

from . import fake_ec2_moto
from .fake_ec2 import REGION, FakeEc2

GIB = 2**30
A, B, C = (f"{REGION}{letter}" for letter in "abc")
DRIVER, CLUSTER = "multi.csi.example.com", "prod"
ONE_WRITER = Capability(mode=AccessMode.SINGLE_NODE_WRITER, mount=Mount(fs_type="ext4"))
MANY_WRITERS = Capability(mode=AccessMode.MULTI_NODE_MULTI_WRITER)
GONE = "vol-00000000000000000"

Connect = Callable[..., EbsBackend]


@contextlib.contextmanager
def connecting(cloud: FakeEc2) -> Iterator[Connect]:
    """Yield a function that creates a backend, as a new process does; it accepts keys of the configuration."""
    with contextlib.ExitStack() as stack:

        def connect(instance: str = "cloud", **config: Any) -> EbsBackend:
            ebs = EbsBackend(backend_config(cloud, **config), setting(instance))
            stack.callback(ebs.close)
            return ebs

        yield connect


def setting(instance: str = "cloud") -> Setting:
    return Setting(instance=instance, driver=DRIVER, cluster=CLUSTER, node="node-1", host=LocalHost())


def backend_config(cloud: FakeEc2, **config: Any) -> Config:
    """Return a configuration with short waits and one attempt per call."""
    short: dict[str, Any] = {
        "consistency_seconds": 0,
        "merge_seconds": 0,
        "poll_seconds": 0.01,
        "wait_seconds": 20,
        "max_attempts": 1,
    }
    return Config(region=REGION, endpoint=cloud.endpoint, **short | config)


def volume_request(
    name: str = "pvc-1", *, source: Source | None = None, digest: str = "ab12", mutable: Any = None, **more: Any
) -> VolumeRequest:
    """Return the request for a volume of 1 GiB, or of the size of its source."""
    stamp = Stamp(driver=DRIVER, cluster=CLUSTER, name=name, digest=digest, source=source, context={"fsType": "ext4"})
    usual: dict[str, Any] = {
        "size": SizeRange(required=0 if source else GIB),
        "capabilities": (ONE_WRITER,),
        "parameters": Parameters(),
    }
    return VolumeRequest(stamp=stamp, mutable=mutable, **usual | more)


def parameters(**given: str) -> Parameters:
    return parse(Parameters, given, "parameters")


def mutable(**given: str) -> MutableParameters:
    return parse(MutableParameters, given, "mutable_parameters")


def snapshot(handle: str) -> Source:
    return Source(kind=SourceKind.SNAPSHOT, handle=handle)


def volume(handle: str) -> Source:
    return Source(kind=SourceKind.VOLUME, handle=handle)


def topology(*preferred: str, requisite: tuple[str, ...] = ()) -> TopologyRequirement:
    """Return a requirement for zones; the preferred ones are also required, unless others are given."""
    segments = {zone: {"zone": zone} for zone in (*preferred, *requisite)}
    return TopologyRequirement(
        requisite=tuple(segments[zone] for zone in requisite or preferred),
        preferred=tuple(segments[zone] for zone in preferred),
    )


def snapshot_request(name: str, source: str, **given: str) -> SnapshotRequest:
    stamp = Stamp(driver=DRIVER, cluster=CLUSTER, name=name, digest="cd34")
    return SnapshotRequest(stamp=stamp, source=source, parameters=parse(SnapshotParameters, given, "parameters"))


def group_request(name: str, *sources: str, **given: str) -> GroupSnapshotRequest:
    stamp = Stamp(driver=DRIVER, cluster=CLUSTER, name=name, digest="ef56")
    return GroupSnapshotRequest(
        stamp=stamp, sources=sources, parameters=parse(GroupSnapshotParameters, given, "parameters")
    )


def nodes(cloud: FakeEc2, number: int = 1, **more: Any) -> list[Node]:
    """Start instances and return them as nodes."""
    return [
        Node(name=f"node-{count}", fact=instance, id=f"node-{count};cloud={instance}")
        for count, instance in enumerate(cloud.instances(number, **more), 1)
    ]


def attach_request(
    node: Node, volume: Volume, *, capability: Capability = ONE_WRITER, read_only: bool = False
) -> AttachRequest:
    return AttachRequest(handle=volume.handle, node=node, capability=capability, read_only=read_only)


def expand_request(volume: Volume, gib: int) -> ExpandRequest:
    return ExpandRequest(handle=volume.handle, size=SizeRange(required=gib * GIB))


def modify_request(volume: Volume, **given: str) -> ModifyRequest:
    return ModifyRequest(handle=volume.handle, mutable=mutable(**given))


def row(cloud: FakeEc2, handle: str) -> Any:
    """Return the volume in the simulated EC2, without the delays of describes."""
    return next(store.volumes[handle] for store in fake_ec2_moto.stores() if handle in store.volumes)


def attached_for(cloud: FakeEc2, handle: str, instance: str, seconds: float) -> None:
    """Let an attachment have begun so many seconds ago."""
    row(cloud, handle).held[instance].attach_time -= timedelta(seconds=seconds)


def tokens(cloud: FakeEc2) -> list[str]:
    """Return the client tokens of all creations that arrived, in their order."""
    return [call.get("ClientToken") for call in cloud.seen if call.action in ("CreateVolume", "CopyVolumes")]


def tags(cloud: FakeEc2, id: str) -> dict[str, str]:
    """Return the tags of a resource."""
    return next((dict(store.tags[id]) for store in fake_ec2_moto.stores() if id in store.tags), {})
