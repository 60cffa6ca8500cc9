"""What can be asked of a volume that exists: publish, validate, expand, modify, capacity."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import GRANULE, MemoryBackend

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import CapacityReport, CapacityRequest
from csi_multi.contract import backend as b
from csi_multi.rpc.client import Client

Code = grpc.StatusCode
GIB = 1 << 30


def mounted(fs_type: str = "", mode: str = "SINGLE_NODE_WRITER") -> pb.VolumeCapability:
    return pb.VolumeCapability(mount={"fs_type": fs_type}, access_mode={"mode": mode})


class Fact(MemoryBackend, b.NodeFacts):
    def node_fact(self) -> str:
        return "i-0abc"


# Publish


@pytest.fixture
def publish(client: Client, create: Any) -> Any:
    create("v")

    def call(**fields: Any) -> Any:
        fields = {"volume_id": "fast/v", "node_id": "node-1", "volume_capability": mounted(), **fields}
        return client.ControllerPublishVolume(**fields)

    return call


def test_publishing_again_gives_the_same_context(publish: Any) -> None:
    assert publish() == publish()
    assert dict(publish().publish_context) == {"device": "v"}


def test_a_node_with_another_instances_fact_in_its_id_is_the_same_node(publish: Any) -> None:
    assert publish(node_id="node-1;other=x") == publish()


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"volume_id": "fast/absent"}, Code.NOT_FOUND, "volume"),
        ({"volume_id": "odd"}, Code.NOT_FOUND, "volume"),
        ({"node_id": "absent"}, Code.NOT_FOUND, "node"),
        ({"node_id": "a b"}, Code.NOT_FOUND, "node"),
        ({"node_id": "node-1;=;"}, Code.NOT_FOUND, "node"),
        ({"volume_capability": mounted(mode="MULTI_NODE_MULTI_WRITER")}, Code.INVALID_ARGUMENT, "MULTI_NODE"),
        ({"readonly": True}, Code.ALREADY_EXISTS, "read_only"),
        ({"node_id": "node-2"}, Code.FAILED_PRECONDITION, "'node-1'"),
    ],
)
def test_a_publication_that_cannot_be_is_refused(
    fields: Any, code: Any, words: str, publish: Any, refused: Any
) -> None:
    publish()

    refusal = refused(lambda _request, **more: publish(**more), **fields)

    assert (refusal.code, words in refusal.text) == (code, True), refusal.text


def test_listed_nodes_are_the_ids_that_nodes_gave_themselves(serve: Any, make: Any, creation: Any) -> None:
    client = serve(make("fast", Fact)).client
    node_id = client.NodeGetInfo().node_id
    client.CreateVolume(creation("v"))
    client.ControllerPublishVolume(volume_id="fast/v", node_id=node_id, volume_capability=mounted())

    assert node_id == "node-1;fast=i-0abc"
    assert list(client.ListVolumes().entries[0].status.published_node_ids) == [node_id]
    assert list(client.ControllerGetVolume(volume_id="fast/v").status.published_node_ids) == [node_id]


@pytest.mark.parametrize("node_id", ["node-1", ""])
def test_unpublishing_is_done_when_nothing_is_attached(node_id: str, publish: Any, client: Client, both: Any) -> None:
    publish()
    for volume_id in ("fast/v", "fast/v", "fast/absent", "odd"):
        client.ControllerUnpublishVolume(volume_id=volume_id, node_id=node_id)

    assert not both.storages["fast"].attached


@pytest.mark.parametrize("node_id", ["node-2", "a b"])
def test_unpublishing_from_another_node_leaves_this_one_alone(
    node_id: str, publish: Any, client: Client, both: Any
) -> None:
    publish()

    client.ControllerUnpublishVolume(volume_id="fast/v", node_id=node_id)

    assert both.storages["fast"].attached


def test_a_published_volume_is_not_deleted(publish: Any, client: Client, refused: Any, both: Any) -> None:
    publish()

    refusal = refused(client.DeleteVolume, volume_id="fast/v")

    assert refusal.code is Code.FAILED_PRECONDITION
    assert "node-1" in refusal.text
    assert both.storages["fast"].volumes


# Validate


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"volume_capabilities": [mounted("ext4")]}, ""),
        ({"parameters": {"tier": "hdd"}}, ""),
        ({"parameters": {"backend": "fast", "tier": "hdd"}, "mutable_parameters": {"iops": "5"}}, ""),
        ({"volume_context": {"fsType": "ext4"}}, ""),
        ({"volume_capabilities": [mounted(mode="MULTI_NODE_MULTI_WRITER")]}, "MULTI_NODE"),
        ({"volume_capabilities": [mounted(), mounted(mode="MULTI_NODE_READER_ONLY")]}, "MULTI_NODE"),
        ({"volume_capabilities": [mounted("ntfs")]}, "ntfs"),
        ({"volume_capabilities": [mounted("xfs")]}, "xfs"),
        ({"parameters": {"fsType": "ext4"}}, ""),
        ({"parameters": {"fsType": "xfs"}}, "has filesystem 'ext4', not 'xfs'"),
        ({"parameters": {"csi.storage.k8s.io/fstype": "xfs"}}, "has filesystem 'ext4', not 'xfs'"),
        ({"parameters": {"tier": "tape"}}, "tier"),
        ({"parameters": {"odd": "x"}}, "odd"),
        ({"parameters": {"backend": "slow"}}, "slow"),
        ({"parameters": {"backend": "absent"}}, "absent"),
        ({"mutable_parameters": {"iops": "0"}}, "iops"),
        ({"mutable_parameters": {"iops": str(2**50)}}, "request at most"),
        ({"volume_context": {"x": "y"}}, "volume_context"),
    ],
)
def test_only_what_is_supported_is_confirmed(fields: Any, words: str, client: Client, create: Any) -> None:
    create("v")
    asked = {"volume_capabilities": [mounted()], **fields}

    answer = client.ValidateVolumeCapabilities(volume_id="fast/v", **asked)

    assert answer.HasField("confirmed") == (not words)
    assert words in answer.message
    if not words:
        assert answer.confirmed == type(answer.confirmed)(**asked)


def test_an_unknown_volume_is_not_validated(client: Client, refused: Any) -> None:
    for volume_id in ("fast/absent", "odd"):
        refusal = refused(client.ValidateVolumeCapabilities, volume_id=volume_id, volume_capabilities=[mounted()])
        assert refusal.code is Code.NOT_FOUND


# Expand


@pytest.mark.parametrize(
    ("size", "found"),
    [
        ({"required_bytes": 2 * GIB}, 2 * GIB),
        ({"required_bytes": 2 * GIB, "limit_bytes": 2 * GIB}, 2 * GIB),
        ({"required_bytes": 2 * GIB - 1}, 2 * GIB),
        ({"required_bytes": 1}, GIB),
        ({"limit_bytes": GIB}, GIB),
        ({"limit_bytes": 5 * GIB}, GIB),
        ({"required_bytes": 1 << 60}, Code.OUT_OF_RANGE),
        ({"limit_bytes": GIB - 1}, Code.OUT_OF_RANGE),
        ({"required_bytes": GIB + 1, "limit_bytes": GIB + 2}, Code.OUT_OF_RANGE),
    ],
)
def test_a_volume_grows_within_the_range_and_never_shrinks(size: Any, found: Any, client: Client, create: Any) -> None:
    create("v")
    for _ in range(2):
        try:
            answer: Any = client.ControllerExpandVolume(volume_id="fast/v", capacity_range=size).capacity_bytes
        except grpc.RpcError as error:
            answer = error.code()
        assert answer == found


def test_a_capability_the_volume_has_not_makes_no_expansion(client: Client, create: Any, refused: Any) -> None:
    create("v")
    wanted = {
        "capacity_range": {"required_bytes": 2 * GIB},
        "volume_capability": mounted(mode="MULTI_NODE_MULTI_WRITER"),
    }

    assert refused(client.ControllerExpandVolume, volume_id="fast/v", **wanted).code is Code.INVALID_ARGUMENT
    assert client.ControllerGetVolume(volume_id="fast/v").volume.capacity_bytes == GIB


# Modify


@pytest.mark.parametrize(("bad", "words"), [({"iops": "0"}, "iops"), ({"iops": "7", "odd": "x"}, "'odd'")])
def test_a_modification_is_all_or_nothing(
    bad: Any, words: str, client: Client, create: Any, refused: Any, both: Any
) -> None:
    create("v")
    for _ in range(2):
        client.ControllerModifyVolume(volume_id="fast/v", mutable_parameters={"iops": "5"})

    refusal = refused(client.ControllerModifyVolume, volume_id="fast/v", mutable_parameters=bad)

    assert (refusal.code, words in refusal.text) == (Code.INVALID_ARGUMENT, True)
    assert both.storages["fast"].iops == {"v": 5}


def test_what_the_resizer_adds_about_the_claim_is_no_parameter(client: Client, create: Any, both: Any) -> None:
    create("v")
    claim = {"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "default"}

    client.ControllerModifyVolume(volume_id="fast/v", mutable_parameters={"iops": "5", **claim})
    client.ControllerModifyVolume(volume_id="fast/v", mutable_parameters=claim)

    assert both.storages["fast"].iops == {"v": 5}


def test_an_unknown_volume_is_not_modified(client: Client, refused: Any) -> None:
    for volume_id in ("fast/absent", "odd"):
        refusal = refused(client.ControllerModifyVolume, volume_id=volume_id, mutable_parameters={"iops": "5"})
        assert refusal.code is Code.NOT_FOUND


# Capacity


class Endless(MemoryBackend):
    """Has no largest volume."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return CapacityReport(available=7, minimum=1)


class Here(MemoryBackend, b.NodeLocal):
    def node_of(self, handle: str) -> str:
        return self.setting.node


@pytest.fixture
def sized(serve: Any, make: Any) -> Any:
    instances = (make("fast", capacity=10 * GIB), make("slow", capacity=5 * GIB), make("local", Here, capacity=GIB))
    return serve(*instances).client


TOPOLOGY = "multi.csi.example.com/node"


@pytest.mark.parametrize(
    ("fields", "available", "largest"),
    [
        ({}, 16 * GIB, 10 * GIB),
        ({"parameters": {"backend": "slow"}}, 5 * GIB, 5 * GIB),
        ({"parameters": {"backend": "slow", "tier": "ssd"}}, 5 * GIB, 5 * GIB),
        ({"volume_capabilities": [mounted(mode="MULTI_NODE_MULTI_WRITER")]}, 0, None),
        ({"volume_capabilities": [mounted("ntfs")]}, 0, None),
        ({"parameters": {"backend": "local"}, "accessible_topology": {"segments": {TOPOLOGY: "node-1"}}}, GIB, GIB),
        ({"parameters": {"backend": "local"}, "accessible_topology": {"segments": {TOPOLOGY: "other"}}}, 0, None),
        ({"accessible_topology": {"segments": {TOPOLOGY: "other"}}}, 15 * GIB, 10 * GIB),
    ],
)
def test_capacity_is_what_could_be_made_under_these_conditions(
    fields: Any, available: int, largest: int | None, sized: Client
) -> None:
    answer = sized.GetCapacity(**fields)

    assert answer.available_capacity == available
    assert (answer.maximum_volume_size.value if answer.HasField("maximum_volume_size") else None) == largest


def test_capacity_shrinks_by_what_is_made(client: Client, creation: Any) -> None:
    before = client.GetCapacity(parameters={"backend": "fast"}).available_capacity
    client.CreateVolume(creation("v", capacity_range={"required_bytes": 300 * GRANULE}))

    assert before - client.GetCapacity(parameters={"backend": "fast"}).available_capacity == 300 * GRANULE


def test_without_a_largest_volume_of_one_there_is_none_of_all(serve: Any, make: Any) -> None:
    answer = serve(make("fast", capacity=5), make("slow", Endless)).client.GetCapacity()

    assert answer.available_capacity == 12
    assert not answer.HasField("maximum_volume_size")


@pytest.mark.parametrize("parameters", [{"backend": "absent"}, {"backend": "fast", "odd": "x"}])
def test_capacity_of_a_class_that_cannot_be_is_refused(parameters: Any, client: Client, refused: Any) -> None:
    assert refused(client.GetCapacity, parameters=parameters).code is Code.INVALID_ARGUMENT
