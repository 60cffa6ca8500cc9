"""The parts of Kubernetes objects that the driver reads."""

from __future__ import annotations

import msgspec


class ObjectMetadata(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] = {}
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class Taint(msgspec.Struct, omit_defaults=True):
    key: str
    effect: str
    value: str = ""
    added: str | None = msgspec.field(default=None, name="timeAdded")


class NodeSpec(msgspec.Struct):
    taints: list[Taint] = []
    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeAddress(msgspec.Struct):
    type: str
    address: str


class NodeCondition(msgspec.Struct):
    type: str
    status: str  # True, False, Unknown


class NodeStatus(msgspec.Struct):
    addresses: list[NodeAddress] = []
    conditions: list[NodeCondition] = []


class NodeObject(msgspec.Struct):
    metadata: ObjectMetadata = msgspec.field(default_factory=ObjectMetadata)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class CsiNodeDriver(msgspec.Struct):
    name: str


class CsiNodeSpec(msgspec.Struct):
    drivers: list[CsiNodeDriver] = []


class CsiNodeObject(msgspec.Struct):
    """The drivers that have registered with the kubelet of the node of the same name."""

    metadata: ObjectMetadata = msgspec.field(default_factory=ObjectMetadata)
    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)
