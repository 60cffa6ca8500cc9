"""Two memory instances on one socket, and the requests that tests begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend
from google.protobuf.message_factory import GetMessageClass

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import HealthEntry, NodeHealthReporter, StorageHealthEntry, Strings
from csi_multi.rpc.client import Client

MOUNT = pb.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


@pytest.fixture
def both(serve: Any, make: Any) -> Any:
    """A driver with the instances `fast` and `slow`, and no default."""
    return serve(make("fast", nodes=("node-2",)), make("slow"))


@pytest.fixture
def client(both: Any) -> Client:
    return both.client


@pytest.fixture(scope="session")
def mount() -> pb.VolumeCapability:
    return MOUNT


@pytest.fixture(scope="session")
def creation() -> Callable[..., pb.CreateVolumeRequest]:
    """A good CreateVolume request; keywords replace fields."""

    def request(name: str = "v", backend: str = "fast", parameters: Any = (), **fields: Any) -> pb.CreateVolumeRequest:
        fields.setdefault("volume_capabilities", [MOUNT])
        chosen = {"backend": backend} if backend else {}
        return pb.CreateVolumeRequest(name=name, parameters={**chosen, **dict(parameters)}, **fields)

    return request


@pytest.fixture
def create(client: Client, creation: Any) -> Callable[..., Any]:
    """Create a volume and return it: create("a", backend="slow").volume_id."""
    return lambda *words, **fields: client.CreateVolume(creation(*words, **fields)).volume


@pytest.fixture
def snap(client: Client) -> Callable[..., Any]:
    """Create a snapshot and return it: snap("s", volume_id)."""
    return lambda name, source, **fields: client.CreateSnapshot(name=name, source_volume_id=source, **fields).snapshot


def _good() -> dict[str, dict[str, Any]]:
    """For every RPC, fields that pass validation, whatever becomes of the request afterwards."""
    volume = {"volume_id": "fast/absent"}
    path = {"staging_target_path": "/nowhere/staging"}
    target, at = {"target_path": "/nowhere/target"}, {"volume_path": "/nowhere/target"}
    one, size = {"volume_capability": MOUNT}, {"capacity_range": {"required_bytes": 1}}
    many = {"volume_capabilities": [MOUNT]}
    group = {"group_snapshot_id": "fast/absent", "snapshot_ids": ["fast/absent-0"]}
    return {
        "CreateVolume": {"name": "v", **many, "parameters": {"backend": "fast"}},
        "DeleteVolume": volume,
        "ControllerPublishVolume": {**volume, **one, "node_id": "node-1"},
        "ControllerUnpublishVolume": volume,
        "ValidateVolumeCapabilities": {**volume, **many},
        "ListVolumes": {},
        "GetCapacity": {},
        "CreateSnapshot": {"name": "s", "source_volume_id": "fast/absent"},
        "DeleteSnapshot": {"snapshot_id": "fast/absent"},
        "ListSnapshots": {},
        "GetSnapshot": {"snapshot_id": "fast/absent"},
        "ControllerExpandVolume": {**volume, **size},
        "ControllerGetVolume": volume,
        "ControllerModifyVolume": {**volume, "mutable_parameters": {"iops": "5"}},
        "ControllerListVolumeHealth": {},
        "ControllerGetVolumeHealth": volume,
        "CreateVolumeGroupSnapshot": {"name": "g", "source_volume_ids": ["fast/absent"]},
        "DeleteVolumeGroupSnapshot": group,
        "GetVolumeGroupSnapshot": group,
        "GetMetadataAllocated": {"snapshot_id": "fast/absent"},
        "GetMetadataDelta": {"base_snapshot_id": "fast/absent", "target_snapshot_id": "fast/absent"},
        "NodeStageVolume": {**volume, **path, **one},
        "NodeUnstageVolume": {**volume, **path},
        "NodePublishVolume": {**volume, **path, **target, **one},
        "NodeUnpublishVolume": {**volume, **target},
        "NodeGetVolumeStats": {**volume, **at},
        "NodeExpandVolume": {**volume, **at},
        "NodeGetVolumeHealth": volume,
    }


@pytest.fixture(scope="session")
def good() -> Callable[..., Any]:
    """good("DeleteVolume") is a request that passes validation; keywords replace fields."""
    rows = _good()

    def request(rpc: str, **fields: Any) -> Any:
        method = next(one for one in methods() if one.name == rpc)
        message = GetMessageClass(method.input_type)(**rows.get(rpc, {}))
        for name, value in fields.items():
            message.ClearField(name)
            message.MergeFrom(type(message)(**{name: value}))
        return message

    return request


def methods() -> Iterator[Any]:
    """All RPCs of all services."""
    for service in pb.DESCRIPTOR.services_by_name.values():
        yield from service.methods


class All(MemoryBackend, NodeHealthReporter):
    """So that every RPC is advertised."""

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return ()

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return ()


@pytest.fixture(scope="session")
def everything(server: Any, make: Any) -> Any:
    """A driver that advertises all 36 RPCs."""
    return server(make("fast", All), make("slow", All))


@pytest.fixture(scope="session")
def code_of() -> Callable[..., grpc.StatusCode]:
    """code_of(served, request, "DeleteVolume") is the code it ends with."""

    def code(served: Any, message: Any, rpc: str) -> grpc.StatusCode:
        try:
            answer = getattr(served.client, rpc)(message)
            if hasattr(answer, "__next__"):
                list(answer)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    return code
