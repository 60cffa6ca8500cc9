"""The services of a cluster's controller: RPCs about node-local objects are forwarded to their node.

An id contains the node: `<instance>/<node>/...`. RPCs of instances that are not node-local are served here, by the
same code as without a cluster. The response or error of a node is returned with its code, text and trailing metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import grpc

from .._proto import csi_pb2 as pb
from ..contract import backend as b
from ..contract import ids
from ..contract.backend import Backend, NodeLocal
from ..contract.errors import InvalidArgument, NotFound, Unavailable
from ..core import mixed_groups
from ..rpc import convert
from ..rpc.group import GroupControllerService
from ..rpc.server import ControllerService
from ..rpc.service_context import ServiceContext, class_parameters
from ..rpc.snapshot_metadata import SnapshotMetadataService
from ..rpc.status import ForwardedError
from .aggregate import Aggregation, empty_response, sum_capacity
from .placement import Placement
from .remote_nodes import NodeLost, RemoteNodes

log = logging.getLogger(__name__)


class RpcForwarder:
    """Finds the node of an object by its id, and forwards the RPCs about it."""

    def __init__(self, context: ServiceContext, nodes: RemoteNodes) -> None:
        self._registry = context.registry
        self.nodes = nodes

    def node_of(self, kind: str, object_id: str) -> str | None:
        """Return the node of a volume, snapshot or group; None: the RPC is served here.

        Raises NotFound for a handle that no node-local instance can have created.
        """
        try:
            if mixed_groups.is_mixed(object_id):
                return mixed_groups.parse(object_id)[0].node
            name, handle = ids.split(kind, object_id)
            backend = self._registry.get(name).backend
        except (NotFound, Unavailable):
            return None  # the local service raises it again, with the same text as without a cluster
        return backend.node_of(handle) if isinstance(backend, NodeLocal) else None

    def send(self, rpc: str, kind: str, object_id: str, request: Any, deadline: float | None, local: Any) -> Any:
        """Return the response of the object's node or, without one, of `local`. Raises NodeLost."""
        node = self.node_of(kind, object_id)
        return local(request, deadline) if node is None else self.nodes.get(node).call(rpc, request, deadline)

    def stream(
        self, rpc: str, kind: str, object_id: str, request: Any, deadline: float | None, local: Any
    ) -> Iterator[Any]:
        """Like `send`, for an RPC with many responses."""
        node = self.node_of(kind, object_id)
        found = local(request, deadline) if node is None else self.nodes.get(node).stream(rpc, request, deadline)
        return cast("Iterator[Any]", found)

    def send_delete(self, rpc: str, kind: str, object_id: str, request: Any, deadline: float | None, local: Any) -> Any:
        """Like `send`, but succeed for an object that never existed or whose node is declared lost."""
        try:
            return self.send(rpc, kind, object_id, request, deadline, local)
        except NodeLost as error:
            log.warning("%s of %s %s: %s; reporting success", rpc, kind, object_id, error)
        except NotFound:
            pass
        return empty_response(rpc)

    def refuse_taken_name(self, rpc: str, kind: str, source: str, request: Any, deadline: float | None) -> None:
        """Raise the error of a node that has the name already, for a source on another node.

        The question is the request itself, which only the source's node can serve. A node that does not have the name
        answers that the source is on another node. Nodes that do not answer are left out: a duplicate name is
        a smaller problem than one broken node that stops all backups.
        """
        home = self.node_of(kind, source)
        others = [name for name in self.nodes.names() if name != home] if home else []
        unreachable = self.nodes.unreachable()
        reachable = [name for name in others if name not in unreachable]
        for outcome in self.nodes.call_many(reachable, rpc, request, deadline).values():
            if isinstance(outcome, ForwardedError) and outcome.code is grpc.StatusCode.ALREADY_EXISTS:
                raise outcome


class ClusterControllerService:
    """The Controller service: 17 RPCs, each served here, by one node, or by all nodes."""

    def __init__(self, context: ServiceContext, nodes: RemoteNodes) -> None:
        self._context = context
        self._forwarder = RpcForwarder(context, nodes)
        self._local = ControllerService(context)
        network = context.registry.subset(lambda backend: not isinstance(backend, NodeLocal))
        self._network = ControllerService(replace(context, registry=network))  # without node-local instances
        self._placement = Placement(context.driver.name, nodes)
        self._aggregation = Aggregation(context.driver.name, nodes)

    def CreateVolume(self, request: pb.CreateVolumeRequest, deadline: float | None) -> Any:
        parameters = class_parameters(self._context.registry, request.parameters, request.mutable_parameters)
        backend = parameters.instance.backend
        if not isinstance(backend, NodeLocal):
            return self._local.CreateVolume(request, deadline)
        forwarded = pb.CreateVolumeRequest()
        forwarded.CopyFrom(request)
        forwarded.parameters["backend"] = (
            parameters.instance.name
        )  # the default in the node's configuration may be another one
        if request.HasField("volume_content_source"):
            source = convert.source(request.volume_content_source, parameters.instance.name)
            return self._forwarder.nodes.get(backend.node_of(source.handle)).call("CreateVolume", forwarded, deadline)
        return self._placement.create(forwarded, deadline)

    def DeleteVolume(self, request: pb.DeleteVolumeRequest, deadline: float | None) -> Any:
        local = self._local.DeleteVolume
        return self._forwarder.send_delete("DeleteVolume", "volume", request.volume_id, request, deadline, local)

    def ControllerPublishVolume(self, request: pb.ControllerPublishVolumeRequest, deadline: float | None) -> Any:
        """Forward to the volume's node, which checks that the volume exists, also where nothing is to be attached."""
        instance, _ = self._context.volume(request.volume_id)
        node = ids.split_node(request.node_id, instance.name).name
        known = node not in self._forwarder.nodes.lost and self._forwarder.nodes.addresses.address(node) is not None
        if not known and not isinstance(instance.backend, b.Attach):
            raise NotFound(
                f"node {node!r} does not exist; the nodes of the cluster are {', '.join(self._forwarder.nodes.names())}"
            )
        return self._forward("ControllerPublishVolume", request, deadline, self._local.ControllerPublishVolume)

    def ControllerUnpublishVolume(self, request: pb.ControllerUnpublishVolumeRequest, deadline: float | None) -> Any:
        """Succeed at once where nothing was attached: an unreachable node must not delay the others."""
        instance = None
        with suppress(NotFound):
            instance = self._context.volume(request.volume_id)[0]
        if instance and isinstance(instance.backend, NodeLocal) and not isinstance(instance.backend, b.Attach):
            return pb.ControllerUnpublishVolumeResponse()
        local, volume = self._local.ControllerUnpublishVolume, request.volume_id
        return self._forwarder.send_delete("ControllerUnpublishVolume", "volume", volume, request, deadline, local)

    def ValidateVolumeCapabilities(self, request: pb.ValidateVolumeCapabilitiesRequest, deadline: float | None) -> Any:
        return self._forward("ValidateVolumeCapabilities", request, deadline, self._local.ValidateVolumeCapabilities)

    def ListVolumes(self, request: pb.ListVolumesRequest, deadline: float | None) -> Any:
        return self._list("ListVolumes", b.ListVolumes, request, deadline, self._network.ListVolumes)

    def GetCapacity(self, request: pb.GetCapacityRequest, deadline: float | None) -> Any:
        if request.parameters or self._context.driver.default_backend:
            parameters = class_parameters(self._context.registry, request.parameters, {})
            if not isinstance(parameters.instance.backend, NodeLocal):
                return self._local.GetCapacity(request, deadline)
            forwarded = pb.GetCapacityRequest()
            forwarded.CopyFrom(request)
            forwarded.parameters["backend"] = parameters.instance.name
            return self._aggregation.capacity(forwarded, deadline)
        local = self._network.GetCapacity(request, deadline)
        if not self._has_node_local(NodeLocal):
            return local
        remote = self._aggregation.capacity(request, deadline)
        total = sum_capacity([local, remote])
        if not local.HasField("maximum_volume_size") and local.available_capacity:
            total.ClearField("maximum_volume_size")  # an instance without a limit has no largest volume
        return total

    def ControllerGetCapabilities(self, request: Any, deadline: float | None) -> Any:
        return self._local.ControllerGetCapabilities(request, deadline)

    def CreateSnapshot(self, request: pb.CreateSnapshotRequest, deadline: float | None) -> Any:
        rpc, volume = "CreateSnapshot", request.source_volume_id
        self._forwarder.refuse_taken_name(rpc, "volume", volume, request, deadline)
        return self._forwarder.send(rpc, "volume", volume, request, deadline, self._local.CreateSnapshot)

    def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, deadline: float | None) -> Any:
        local = self._local.DeleteSnapshot
        return self._forwarder.send_delete("DeleteSnapshot", "snapshot", request.snapshot_id, request, deadline, local)

    def GetSnapshot(self, request: pb.GetSnapshotRequest, deadline: float | None) -> Any:
        local = self._local.GetSnapshot
        return self._forwarder.send("GetSnapshot", "snapshot", request.snapshot_id, request, deadline, local)

    def ListSnapshots(self, request: pb.ListSnapshotsRequest, deadline: float | None) -> Any:
        """Forward a filtered list to the node of the filter's id; an unknown id has no snapshots."""
        kind, text = ("snapshot", request.snapshot_id) if request.snapshot_id else ("volume", request.source_volume_id)
        if not text:
            return self._list("ListSnapshots", b.ListSnapshots, request, deadline, self._network.ListSnapshots)
        try:
            return self._forwarder.send("ListSnapshots", kind, text, request, deadline, self._local.ListSnapshots)
        except NotFound:
            return pb.ListSnapshotsResponse()

    def ControllerExpandVolume(self, request: pb.ControllerExpandVolumeRequest, deadline: float | None) -> Any:
        return self._forward("ControllerExpandVolume", request, deadline, self._local.ControllerExpandVolume)

    def ControllerGetVolume(self, request: pb.ControllerGetVolumeRequest, deadline: float | None) -> Any:
        return self._forward("ControllerGetVolume", request, deadline, self._local.ControllerGetVolume)

    def ControllerModifyVolume(self, request: pb.ControllerModifyVolumeRequest, deadline: float | None) -> Any:
        return self._forward("ControllerModifyVolume", request, deadline, self._local.ControllerModifyVolume)

    def ControllerListVolumeHealth(self, request: pb.ControllerListVolumeHealthRequest, deadline: float | None) -> Any:
        local = self._network.ControllerListVolumeHealth
        return self._list("ControllerListVolumeHealth", b.VolumeHealthLister, request, deadline, local)

    def ControllerGetVolumeHealth(self, request: pb.ControllerGetVolumeHealthRequest, deadline: float | None) -> Any:
        return self._forward("ControllerGetVolumeHealth", request, deadline, self._local.ControllerGetVolumeHealth)

    def _forward(self, rpc: str, request: Any, deadline: float | None, local: Any) -> Any:
        """Forward an RPC about one volume."""
        return self._forwarder.send(rpc, "volume", request.volume_id, request, deadline, local)

    def _list(
        self, rpc: str, feature: type[Backend], request: Any, deadline: float | None, list_local: Callable[..., Any]
    ) -> Any:
        if not self._has_node_local(feature):
            return list_local(request, deadline)
        return self._aggregation.list_entries(rpc, request, lambda one: list_local(one, deadline), deadline)

    def _has_node_local(self, feature: type[Backend]) -> bool:
        """Whether a node-local instance has a feature; without one the nodes have nothing to add."""
        backends = [instance.backend for instance in self._context.registry]
        return any(isinstance(one, NodeLocal) and isinstance(one, feature) for one in backends)


class ClusterGroupControllerService:
    """The GroupController service."""

    def __init__(self, context: ServiceContext, nodes: RemoteNodes) -> None:
        self._forwarder = RpcForwarder(context, nodes)
        self._local = GroupControllerService(context)

    def GroupControllerGetCapabilities(self, request: Any, deadline: float | None) -> Any:
        return self._local.GroupControllerGetCapabilities(request, deadline)

    def CreateVolumeGroupSnapshot(self, request: pb.CreateVolumeGroupSnapshotRequest, deadline: float | None) -> Any:
        homes = {self._forwarder.node_of("volume", one) for one in request.source_volume_ids}
        if len(homes) > 1:
            names = ", ".join(sorted(repr(home) for home in homes if home))
            others = ", and others are of backends that are reached over a network" if None in homes else ""
            raise InvalidArgument(
                f"source_volume_ids: the volumes are on different nodes ({names}{others}), which cannot take snapshots "
                "at one point in time; use volumes of one node"
            )
        rpc, first = "CreateVolumeGroupSnapshot", request.source_volume_ids[0]
        self._forwarder.refuse_taken_name(rpc, "volume", first, request, deadline)
        return self._forwarder.send(rpc, "volume", first, request, deadline, self._local.CreateVolumeGroupSnapshot)

    def DeleteVolumeGroupSnapshot(self, request: pb.DeleteVolumeGroupSnapshotRequest, deadline: float | None) -> Any:
        rpc, group, local = (
            "DeleteVolumeGroupSnapshot",
            request.group_snapshot_id,
            self._local.DeleteVolumeGroupSnapshot,
        )
        return self._forwarder.send_delete(rpc, "group snapshot", group, request, deadline, local)

    def GetVolumeGroupSnapshot(self, request: pb.GetVolumeGroupSnapshotRequest, deadline: float | None) -> Any:
        rpc, group, local = "GetVolumeGroupSnapshot", request.group_snapshot_id, self._local.GetVolumeGroupSnapshot
        return self._forwarder.send(rpc, "group snapshot", group, request, deadline, local)


class ClusterSnapshotMetadataService:
    """The SnapshotMetadata service: its streams pass through, message by message."""

    def __init__(self, context: ServiceContext, nodes: RemoteNodes) -> None:
        self._forwarder = RpcForwarder(context, nodes)
        self._local = SnapshotMetadataService(context)

    def GetMetadataAllocated(self, request: pb.GetMetadataAllocatedRequest, deadline: float | None) -> Iterator[Any]:
        rpc, snapshot, local = "GetMetadataAllocated", request.snapshot_id, self._local.GetMetadataAllocated
        return self._forwarder.stream(rpc, "snapshot", snapshot, request, deadline, local)

    def GetMetadataDelta(self, request: pb.GetMetadataDeltaRequest, deadline: float | None) -> Iterator[Any]:
        base, target = request.base_snapshot_id, request.target_snapshot_id
        home, other = (self._forwarder.node_of("snapshot", one) for one in (base, target))
        if home and other and home != other:
            raise InvalidArgument(
                f"base_snapshot_id is on node {home!r} and target_snapshot_id on node {other!r}, so they are not of "
                "the same volume; name two snapshots of one volume"
            )
        rpc, local = "GetMetadataDelta", self._local.GetMetadataDelta
        return self._forwarder.stream(rpc, "snapshot", target, request, deadline, local)
