"""The parts of Kubernetes' objects that startup taint and drain hook look at."""

from __future__ import annotations

import msgspec


class Taint(msgspec.Struct, omit_defaults=True):
    key: str
    effect: str
    value: str = ""
    added: str | None = msgspec.field(default=None, name="timeAdded")


class Metadata(msgspec.Struct):
    name: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")


class NodeSpec(msgspec.Struct):
    taints: list[Taint] = []
    unschedulable: bool = False


class Node(msgspec.Struct):
    metadata: Metadata
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)


class Registered(msgspec.Struct):
    name: str


class DriverList(msgspec.Struct):
    drivers: list[Registered] = []


class CsiNode(msgspec.Struct):
    """What a kubelet says of the drivers that have registered with it. Has the node's name."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)
    spec: DriverList = msgspec.field(default_factory=DriverList)
    code: int = 0  # of a Status object, which an ERROR event has in its place


class CsiNodeEvent(msgspec.Struct):
    type: str
    object: CsiNode
