"""Where a volume may be reached from, and what that means for a request (csi-spec 2.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import FailedPrecondition, InvalidArgument, StorageError, TopologyRequirement, Unavailable
from csi_multi.contract import backend as b
from csi_multi.core import topology

Code = grpc.StatusCode
DRIVER = "multi.csi.example.com"
A, B = {"zone": "a"}, {"zone": "b"}
MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


@pytest.mark.parametrize(
    ("reachable", "requisite", "preferred", "satisfied"),
    [
        ((), (A,), (), True),
        ((A,), (), (), True),
        ((A,), (), (B,), True),
        ((A,), (A,), (), True),
        ((A,), (B, A), (), True),
        ((A,), (B,), (), False),
        ((A, B), (B,), (), True),
        ((A,), ({"zone": "a", "node": "n"},), (), True),
        (({"zone": "a", "node": "n"},), (A,), (), False),
        ((A,), ({"zone": "A"},), (), False),
        ((A,), ({"rack": "a"},), (), False),
    ],
)
def test_a_volume_must_be_reachable_from_one_requisite_place(
    reachable: Any, requisite: Any, preferred: Any, satisfied: bool
) -> None:
    requirement = TopologyRequirement(requisite=requisite, preferred=preferred)

    assert topology.satisfies(reachable, requirement) is satisfied


def test_no_requirement_is_always_satisfied() -> None:
    assert topology.satisfies((A,), None)


def test_a_prefix_is_put_on_and_taken_off() -> None:
    wire = topology.add_prefix(DRIVER, {"zone": "a", "node": "n"})

    assert wire == {f"{DRIVER}/zone": "a", f"{DRIVER}/node": "n"}
    assert topology.strip_prefix(DRIVER, wire) == {"zone": "a", "node": "n"}


def test_keys_are_the_same_in_any_case() -> None:
    assert topology.strip_prefix(DRIVER, {f"{DRIVER}/Zone": "A"}) == {"zone": "A"}


@pytest.mark.parametrize("key", ["zone", "other.example.com/zone", f"x{DRIVER}/zone", f"{DRIVER}zone"])
def test_a_key_of_somebody_else_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=DRIVER):
        topology.strip_prefix(DRIVER, {key: "a"})


def test_a_key_of_another_driver_is_refused_with_the_ones_to_write(client: Any, refused: Any) -> None:
    request = wanted("zoned")
    request.accessibility_requirements.requisite.add(segments={"topology.ebs.csi.aws.com/zone": "a"})

    refusal = refused(client.CreateVolume, request)

    assert refusal.code is Code.INVALID_ARGUMENT
    assert "'topology.ebs.csi.aws.com/zone' is not this driver's" in refusal.text
    assert f"write '{DRIVER}/zone' or 'topology.kubernetes.io/zone'" in refusal.text


@pytest.mark.parametrize(
    ("key", "segment"),
    [
        ("topology.kubernetes.io/zone", "zone"),
        ("Topology.Kubernetes.io/Zone", "zone"),
        ("topology.kubernetes.io/region", "region"),
        ("topology.k8s.aws/zone-id", "zone-id"),
    ],
)
def test_well_known_keys_mean_the_segments_that_they_name(key: str, segment: str) -> None:
    assert topology.strip_prefix(DRIVER, {key: "a"}) == {segment: "a"}
    assert topology.strip_prefix(DRIVER, {key: "a", f"{DRIVER}/{segment}": "a"}) == {segment: "a"}


def test_two_keys_of_one_segment_must_agree() -> None:
    with pytest.raises(InvalidArgument, match=r"'zone' has the values 'a' and 'b'; .* leave one out"):
        topology.strip_prefix(DRIVER, {f"{DRIVER}/zone": "a", "topology.kubernetes.io/zone": "b"})


class Local(MemoryBackend, b.NodeLocal):
    def node_of(self, handle: str) -> str:
        return self.setting.node


class Zoned(MemoryBackend, b.Topology):
    def node_segments(self) -> dict[str, str]:
        return {"zone": "a"}


class WellKnown(Zoned):
    well_known_keys = True

    def node_segments(self) -> dict[str, str]:
        return {"zone": "a", "zone-id": "a1", "rack": "7"}

    def create_volume(self, request: Any) -> Any:
        volume = replace(super().create_volume(request), topology=({"zone": "a", "rack": "7"},))
        self.storage.volumes[volume.handle] = volume
        return volume

    def find_volume(self, name: str) -> Any:
        return replace(super().find_volume(name), topology_aliases=({"zone-id": "a1"},))


@pytest.fixture
def client(serve: Any, make: Any) -> Any:
    return serve(make("local", Local), make("zoned", Zoned), make("fast")).client


def wanted(backend: str, name: str = "v", **requirement: Any) -> pb.CreateVolumeRequest:
    places = {
        kind: [{"segments": {f"{DRIVER}/{key}": value for key, value in place.items()}} for place in places]
        for kind, places in requirement.items()
    }
    return pb.CreateVolumeRequest(
        name=name, parameters={"backend": backend}, volume_capabilities=[MOUNT], accessibility_requirements=places
    )


def test_a_node_offers_the_segments_of_all_its_instances(client: Any) -> None:
    info = client.NodeGetInfo()

    assert dict(info.accessible_topology.segments) == {f"{DRIVER}/node": "node-1", f"{DRIVER}/zone": "a"}
    assert info.node_id == "node-1"


def test_a_node_of_which_two_instances_say_different_things_is_refused(serve: Any, make: Any, refused: Any) -> None:
    class Elsewhere(Zoned):
        def node_segments(self) -> dict[str, str]:
            return {"zone": "b"}

    refusal = refused(serve(make("one", Zoned), make("two", Elsewhere)).client.NodeGetInfo)

    assert refusal.code is Code.FAILED_PRECONDITION
    assert "'one' and 'two' report different segments 'zone' for this node: 'a' and 'b'" in refusal.text


def test_two_instances_may_say_the_same_of_a_node(serve: Any, make: Any) -> None:
    info = serve(make("one", Zoned), make("two", Zoned)).client.NodeGetInfo()

    assert dict(info.accessible_topology.segments) == {f"{DRIVER}/zone": "a"}


def test_an_instance_with_well_known_keys_has_nodes_report_both_and_volumes_the_well_known_one(
    serve: Any, make: Any
) -> None:
    """What starts nodes knows the well-known labels of a node that does not run yet, and none of a driver."""
    client = serve(make("zoned", WellKnown), make("local", Local)).client
    segments = dict(client.NodeGetInfo().accessible_topology.segments)

    volume = client.CreateVolume(wanted("zoned", requisite=[{"zone": "a", "rack": "7"}])).volume

    own = {f"{DRIVER}/zone": "a", f"{DRIVER}/zone-id": "a1", f"{DRIVER}/rack": "7", f"{DRIVER}/node": "node-1"}
    assert segments == own | {"topology.kubernetes.io/zone": "a", "topology.k8s.aws/zone-id": "a1"}
    assert [dict(one.segments) for one in volume.accessible_topology] == [
        {"topology.kubernetes.io/zone": "a", f"{DRIVER}/rack": "7"}
    ]


def test_the_labels_of_a_node_are_a_valid_request_for_every_instance_of_the_driver(serve: Any, make: Any) -> None:
    client = serve(make("zoned", WellKnown), make("local", Local)).client
    labels = dict(client.NodeGetInfo().accessible_topology.segments)
    places = {"requisite": [{"segments": labels}], "preferred": [{"segments": labels}]}

    for backend in ("zoned", "local"):
        fields = {"volume_capabilities": [MOUNT], "accessibility_requirements": places}
        assert client.CreateVolume(name="v", parameters={"backend": backend}, **fields).volume.accessible_topology
        assert client.GetCapacity(parameters={"backend": backend}, accessible_topology={"segments": labels})


def test_a_repeated_request_may_name_the_place_of_a_volume_by_an_alias(serve: Any, make: Any, refused: Any) -> None:
    client = serve(make("zoned", WellKnown)).client
    first = client.CreateVolume(wanted("zoned", requisite=[{"zone-id": "a1"}])).volume

    again = client.CreateVolume(wanted("zoned", requisite=[{"zone-id": "a1"}])).volume
    refusal = refused(client.CreateVolume, wanted("zoned", requisite=[{"zone-id": "b1"}]))

    assert again.volume_id == first.volume_id
    assert refusal.code is Code.ALREADY_EXISTS


def test_a_node_without_places_says_nothing_of_them(serve: Any, make: Any) -> None:
    client = serve(make("fast")).client

    assert not client.NodeGetInfo().HasField("accessible_topology")


def test_a_node_local_volume_tells_its_node(client: Any) -> None:
    volume = client.CreateVolume(wanted("local", requisite=[{"node": "node-1", "zone": "a"}])).volume

    assert [dict(one.segments) for one in volume.accessible_topology] == [{f"{DRIVER}/node": "node-1"}]


def test_a_place_that_cannot_be_served_is_left_to_the_scheduler(client: Any, refused: Any) -> None:
    refusal = refused(client.CreateVolume, wanted("local", requisite=[{"node": "node-2"}]))

    assert refusal.code is Code.RESOURCE_EXHAUSTED
    assert "node-1" in refusal.text


def test_a_preferred_place_does_not_bind(client: Any) -> None:
    assert client.CreateVolume(wanted("local", preferred=[{"node": "node-2"}])).volume.volume_id == "local/v"


def test_the_same_name_in_another_place_is_refused(client: Any, refused: Any) -> None:
    """RESOURCE_EXHAUSTED would let the scheduler make it again elsewhere, and this one leak."""
    client.CreateVolume(wanted("local", requisite=[{"node": "node-1"}]))

    refusal = refused(client.CreateVolume, wanted("local", requisite=[{"node": "node-2"}]))

    assert refusal.code is Code.ALREADY_EXISTS
    assert "topology" in refusal.text


def test_a_foreign_key_is_refused_where_places_matter_and_ignored_where_not(client: Any, refused: Any) -> None:
    places = {"requisite": [{"segments": {"other.example.com/zone": "a"}}]}
    fields = {"volume_capabilities": [MOUNT], "accessibility_requirements": places}

    bad = refused(client.CreateVolume, name="v", parameters={"backend": "local"}, **fields)
    good = client.CreateVolume(name="v", parameters={"backend": "fast"}, **fields).volume

    assert bad.code is Code.INVALID_ARGUMENT
    assert not good.accessible_topology


def test_only_drivers_with_places_advertise_them(client: Any, serve: Any, make: Any) -> None:
    kind = pb.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS
    plain = serve(make("fast")).client

    assert kind in [one.service.type for one in client.GetPluginCapabilities().capabilities]
    assert kind not in [one.service.type for one in plain.GetPluginCapabilities().capabilities]


def test_an_instance_that_is_configured_without_places_is_as_one_that_knows_none(serve: Any, make: Any) -> None:
    """A provisioner that is told of places waits for nodes that have some."""
    kind = pb.PluginCapability.Service.VOLUME_ACCESSIBILITY_CONSTRAINTS
    everywhere = type("Everywhere", (Zoned,), {"everywhere": True, "node_segments": lambda _: {}})
    places = {"requisite": [{"segments": {"other.example.com/zone": "a"}}]}
    client = serve(make("fast", everywhere)).client

    assert kind not in [one.service.type for one in client.GetPluginCapabilities().capabilities]
    assert not client.NodeGetInfo().HasField("accessible_topology")
    client.CreateVolume(
        name="v", parameters={"backend": "fast"}, volume_capabilities=[MOUNT], accessibility_requirements=places
    )


class Limited(MemoryBackend, b.NodeFacts):
    limit = 0

    def node_fact(self) -> str:
        return f"i-{self.setting.instance}"

    def max_volumes(self) -> int:
        return self.limit


@pytest.mark.parametrize(("limits", "found"), [((5, 7), 5), ((5, 0), 5), ((0, 0), 0), ((5,), 5)])
def test_the_scarcest_limit_is_that_of_all_instances(limits: Any, found: int, serve: Any, make: Any) -> None:
    kinds = [type("Kind", (Limited,), {"limit": limit}) for limit in limits]

    info = serve(*(make(f"b{number}", kind) for number, kind in enumerate(kinds))).client.NodeGetInfo()

    assert info.max_volumes_per_node == found
    assert info.node_id == ";".join(["node-1", *(f"b{number}=i-b{number}" for number in range(len(kinds)))])


class NoPlace(Zoned, b.NodeFacts):
    """Its volumes are for machines of another kind."""

    trouble: ClassVar[type[StorageError]] = FailedPrecondition

    def node_fact(self) -> str:
        raise self.trouble("this machine is no EC2 instance")


def test_an_instance_that_has_no_place_on_a_node_leaves_the_others_alone(serve: Any, make: Any) -> None:
    info = serve(make("far", NoPlace), make("near", Limited)).client.NodeGetInfo()

    assert info.node_id == "node-1;near=i-near"
    assert not info.HasField("accessible_topology")


def test_an_instance_that_cannot_say_now_is_waited_for(serve: Any, make: Any, refused: Any) -> None:
    silent = type("Silent", (NoPlace,), {"trouble": Unavailable})

    refusal = refused(serve(make("far", silent), make("near", Limited)).client.NodeGetInfo)

    assert refusal.code is Code.UNAVAILABLE
