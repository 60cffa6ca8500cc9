"""Capacity as kube-scheduler needs it: no class without a figure, and for the whole topology of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend, MemoryStorage

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import UNLIMITED, AccessMode, Capability, CapacityReport, CapacityRequest, Segments
from csi_multi.contract import backend as b
from csi_multi.rpc.capabilities import Mode

DRIVER = "multi.csi.example.com"
GIB = 1 << 30
PLAIN = {name: value for name, value in vars(MemoryBackend).items() if callable(value) and name != "capacity"}
Unknowing = type("Unknowing", (b.Expand, b.Clone, b.ListVolumes), {**PLAIN, "contract": (1, 0)})


class Silent(Unknowing):  # type: ignore[misc,valid-type]
    """Does not know its capacity."""

    Config = MemoryBackend.Config
    Parameters = MemoryBackend.Parameters
    MutableParameters = MemoryBackend.MutableParameters

    def __init__(self, config: Any, setting: b.Setting) -> None:
        b.Backend.__init__(self, config, setting)
        self.storage = MemoryStorage()

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        return "" if capability.mode.single_node else "one node at a time"


class SilentHere(Silent, b.NodeLocal):
    """Does not know its capacity, and has its volumes on this node."""

    def node_of(self, handle: str) -> str:
        return self.setting.node


class Boundless(MemoryBackend):
    """Says by itself that no limit is known."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=UNLIMITED, minimum=GIB)


class Zoned(MemoryBackend, b.Topology):
    """Is reached from one zone, under the key that the class names."""

    key, place = "zone", "a"

    def node_segments(self) -> Segments:
        return {self.key: self.place}

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        within = request.segments is None or request.segments.get(self.key) == self.place
        return super().capacity(request) if within else CapacityReport(available=0)


class Racked(Zoned):
    key, place = "rack", "r1"


def at(**segments: str) -> dict[str, Any]:
    return {"accessible_topology": {"segments": {f"{DRIVER}/{key}": value for key, value in segments.items()}}}


def of(instance: str) -> dict[str, Any]:
    return {"parameters": {"backend": instance}}


def using(mode: AccessMode) -> dict[str, Any]:
    return {"volume_capabilities": [pb.VolumeCapability(block={}, access_mode={"mode": mode.name})]}


@pytest.mark.parametrize(
    ("instance", "where", "available"),
    [
        ("silent", {}, UNLIMITED),
        ("silent", at(zone="a", node="node-9"), UNLIMITED),
        ("here", {}, UNLIMITED),
        ("here", at(node="node-1", zone="a"), UNLIMITED),
        ("here", at(node="node-9"), 0),
        ("here", at(zone="a"), 0),
    ],
)
def test_a_class_whose_backend_does_not_know_holds_no_pod_back(
    instance: str, where: Mapping[str, Any], available: int, serve: Any, make: Any
) -> None:
    client = serve(make("silent", Silent), make("here", SilentHere)).client

    answer = client.GetCapacity(**of(instance), **where)

    assert answer == pb.GetCapacityResponse(available_capacity=available), "and neither largest nor smallest"


def test_the_default_class_is_answered_for_too(serve: Any, make: Any) -> None:
    client = serve(make("fast", capacity=5), make("silent", Silent), default="silent").client

    assert client.GetCapacity().available_capacity == UNLIMITED


def test_a_use_that_the_backend_refuses_has_no_capacity_however_little_it_knows(serve: Any, make: Any) -> None:
    client = serve(make("silent", Silent)).client
    one, many = AccessMode.SINGLE_NODE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER

    found = [client.GetCapacity(**of("silent"), **using(mode)).available_capacity for mode in (one, many)]

    assert found == [UNLIMITED, 0]


@pytest.mark.parametrize("kind", [Silent, Boundless])
def test_what_all_have_together_is_no_more_than_can_be_said_and_has_no_largest(
    kind: type[b.Backend], serve: Any, make: Any
) -> None:
    answer = serve(make("fast", capacity=5), make("other", kind), make("third", kind)).client.GetCapacity()

    assert answer.available_capacity == UNLIMITED
    assert not answer.HasField("maximum_volume_size")


class Limited(MemoryBackend):
    """Has a limit for a volume, whatever is left."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=2 * GIB, maximum=8 * GIB)


def test_the_largest_volume_is_no_larger_than_what_is_available(serve: Any, make: Any) -> None:
    """The scheduler looks at the largest volume alone where there is one, and would choose a full node."""
    answer = serve(make("limited", Limited)).client.GetCapacity(**of("limited"))

    assert (answer.available_capacity, answer.maximum_volume_size.value) == (2 * GIB, 2 * GIB)


@pytest.mark.parametrize("mode", [Mode.ALL, Mode.CONTROLLER])
def test_capacity_is_offered_even_if_no_backend_knows_it(mode: Mode, serve: Any, make: Any) -> None:
    """external-provisioner is told to ask before it is known which backends there will be."""
    client = serve(make("silent", Silent), mode=mode).client
    kinds = {one.rpc.type for one in client.ControllerGetCapabilities().capabilities}

    assert pb.ControllerServiceCapability.RPC.GET_CAPACITY in kinds
    assert client.GetCapacity().available_capacity == UNLIMITED


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"zone": "a", "rack": "r1", "node": "node-1"}, [GIB, 2 * GIB]),
        ({"zone": "a", "rack": "r2", "node": "node-1"}, [GIB, 0]),
        ({"zone": "b", "rack": "r1", "node": "node-1"}, [0, 2 * GIB]),
        ({"rack": "r1"}, [0, 2 * GIB]),
    ],
)
def test_the_places_of_other_instances_on_a_node_change_nothing(
    node: Mapping[str, str], found: list[int], serve: Any, make: Any
) -> None:
    """external-provisioner asks with all keys that a node has, whichever instance they come from."""
    client = serve(make("zoned", Zoned, capacity=GIB), make("racked", Racked, capacity=2 * GIB)).client

    assert [client.GetCapacity(**of(name), **at(**node)).available_capacity for name in ("zoned", "racked")] == found


def test_a_place_of_another_driver_is_refused(serve: Any, make: Any, refused: Any) -> None:
    client = serve(make("silent", Silent)).client
    elsewhere = {"accessible_topology": {"segments": {"other.example.com/zone": "a"}}}

    assert refused(client.GetCapacity, **of("silent"), **elsewhere).code is grpc.StatusCode.INVALID_ARGUMENT
