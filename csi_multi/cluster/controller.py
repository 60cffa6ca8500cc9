"""The Controller and GroupController services of a cluster: what belongs to a node is sent to that node.

An id says whose it is: `<instance>/<node>/...`. RPCs of instances that are not node-local are served here, by the
same code as without a cluster. The answer of a node, its code, text and trailing metadata, is the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import grpc

from .._proto import csi_pb2 as pb
from ..contract import backend as b
from ..contract import ids
from ..contract.backend import Backend, NodeLocal
from ..contract.errors import InvalidArgument, NotFound, Unavailable
from ..rpc import convert
from ..rpc.group import GroupControllerService
from ..rpc.server import ControllerService
from ..rpc.service_context import ServiceContext, class_parameters
from ..rpc.status import ForwardedError
from .aggregate import Gathering, together
from .placement import Placing
from .remote_nodes import Lost, Nodes

log = logging.getLogger(__name__)


class Homes:
    """Where things live."""

    def __init__(self, core: ServiceContext, nodes: Nodes) -> None:
        self._registry = core.registry
        self.nodes = nodes

    def of(self, kind: str, text: str) -> str | None:
        """Return the node of a volume, snapshot or group by its id; None: it is served here.

        Raises NotFound for a handle that no node-local instance can have made.
        """
        try:
            name, handle = ids.split(kind, text)
            backend = self._registry.get(name).backend
        except (NotFound, Unavailable):
            return None  # said here, in the words that are used without a cluster
        return backend.node_of(handle) if isinstance(backend, NodeLocal) else None

    def send(self, rpc: str, kind: str, text: str, request: Any, deadline: float | None, here: Any) -> Any:
        """Return the answer of whoever has the thing. Raises Lost for what was on a lost node."""
        node = self.of(kind, text)
        return here(request, deadline) if node is None else self.nodes.get(node).call(rpc, request, deadline)

    def remove(self, rpc: str, kind: str, text: str, request: Any, deadline: float | None, here: Any) -> Any:
        """Like send, for deletions: what was never there, or was lost with its node, is gone."""
        try:
            return self.send(rpc, kind, text, request, deadline, here)
        except Lost as error:
            log.warning("%s of %s %s succeeds without asking anybody: %s", rpc, kind, text, error)
        except NotFound:
            pass
        return getattr(pb, f"{rpc}Response")()

    def refuse_taken(self, rpc: str, kind: str, text: str, request: Any, deadline: float | None) -> None:
        """Raise what a node says that has the name for the source of another node.

        The question is the request itself, which only the node of the source can serve: where the name is not
        taken the answer is that the source lives elsewhere. Nodes that do not answer are left out: a name that
        is taken twice is bad, a backup that waits for a broken node is worse.
        """
        home = self.of(kind, text)
        others = [name for name in self.nodes.names() if name != home] if home else []
        up = [name for name in others if name not in self.nodes.down()]
        for outcome in self.nodes.ask(up, rpc, request, deadline).values():
            if isinstance(outcome, ForwardedError) and outcome.code is grpc.StatusCode.ALREADY_EXISTS:
                raise outcome


class ClusterController:
    """The Controller service: 17 RPCs, each served here, by one node, or by all."""

    def __init__(self, core: ServiceContext, nodes: Nodes) -> None:
        self._core = core
        self._homes = Homes(core, nodes)
        self._own = ControllerService(core)
        rest = core.registry.subset(lambda backend: not isinstance(backend, NodeLocal))
        self._rest = ControllerService(replace(core, registry=rest))
        self._placing = Placing(core.driver.name, nodes)
        self._gathering = Gathering(core.driver.name, nodes)

    def CreateVolume(self, request: pb.CreateVolumeRequest, deadline: float | None) -> Any:
        parameters = class_parameters(self._core.registry, request.parameters, request.mutable_parameters)
        backend = parameters.instance.backend
        if not isinstance(backend, NodeLocal):
            return self._own.CreateVolume(request, deadline)
        wanted = pb.CreateVolumeRequest()
        wanted.CopyFrom(request)
        wanted.parameters["backend"] = parameters.instance.name  # a node's default may be another one by now
        if request.HasField("volume_content_source"):
            source = convert.source(request.volume_content_source, parameters.instance.name)
            return self._homes.nodes.get(backend.node_of(source.handle)).call("CreateVolume", wanted, deadline)
        return self._placing.create(wanted, deadline)

    def DeleteVolume(self, request: pb.DeleteVolumeRequest, deadline: float | None) -> Any:
        here = self._own.DeleteVolume
        return self._homes.remove("DeleteVolume", "volume", request.volume_id, request, deadline, here)

    def ControllerPublishVolume(self, request: pb.ControllerPublishVolumeRequest, deadline: float | None) -> Any:
        """Where there is nothing to attach, the volume's node says whether it is there."""
        instance, _ = self._core.volume(request.volume_id)
        node = ids.split_node(request.node_id, instance.name).name
        known = node not in self._homes.nodes.lost and self._homes.nodes.addresses.of(node) is not None
        if not known and not isinstance(instance.backend, b.Attach):
            raise NotFound(f"node {node!r} does not exist: the cluster has {', '.join(self._homes.nodes.names())}")
        return self._to("ControllerPublishVolume", request, deadline, self._own.ControllerPublishVolume)

    def ControllerUnpublishVolume(self, request: pb.ControllerUnpublishVolumeRequest, deadline: float | None) -> Any:
        """Where nothing was attached nothing is asked: a node that is down must not hold up the others."""
        instance = None
        with suppress(NotFound):
            instance = self._core.volume(request.volume_id)[0]
        if instance and isinstance(instance.backend, NodeLocal) and not isinstance(instance.backend, b.Attach):
            return pb.ControllerUnpublishVolumeResponse()
        here, volume = self._own.ControllerUnpublishVolume, request.volume_id
        return self._homes.remove("ControllerUnpublishVolume", "volume", volume, request, deadline, here)

    def ValidateVolumeCapabilities(self, request: pb.ValidateVolumeCapabilitiesRequest, deadline: float | None) -> Any:
        return self._to("ValidateVolumeCapabilities", request, deadline, self._own.ValidateVolumeCapabilities)

    def ListVolumes(self, request: pb.ListVolumesRequest, deadline: float | None) -> Any:
        return self._listed("ListVolumes", b.ListVolumes, request, deadline, self._rest.ListVolumes)

    def GetCapacity(self, request: pb.GetCapacityRequest, deadline: float | None) -> Any:
        if request.parameters or self._core.driver.default_backend:
            parameters = class_parameters(self._core.registry, request.parameters, {})
            if not isinstance(parameters.instance.backend, NodeLocal):
                return self._own.GetCapacity(request, deadline)
            wanted = pb.GetCapacityRequest()
            wanted.CopyFrom(request)
            wanted.parameters["backend"] = parameters.instance.name
            return self._gathering.capacity(wanted, deadline)
        here = self._rest.GetCapacity(request, deadline)
        if not self._some_local(NodeLocal):
            return here
        there = self._gathering.capacity(request, deadline)
        total = together([here, there])
        if not here.HasField("maximum_volume_size") and here.available_capacity:
            total.ClearField("maximum_volume_size")  # one without a limit has no largest volume
        return total

    def ControllerGetCapabilities(self, request: Any, deadline: float | None) -> Any:
        return self._own.ControllerGetCapabilities(request, deadline)

    def CreateSnapshot(self, request: pb.CreateSnapshotRequest, deadline: float | None) -> Any:
        rpc, volume = "CreateSnapshot", request.source_volume_id
        self._homes.refuse_taken(rpc, "volume", volume, request, deadline)
        return self._homes.send(rpc, "volume", volume, request, deadline, self._own.CreateSnapshot)

    def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, deadline: float | None) -> Any:
        here = self._own.DeleteSnapshot
        return self._homes.remove("DeleteSnapshot", "snapshot", request.snapshot_id, request, deadline, here)

    def GetSnapshot(self, request: pb.GetSnapshotRequest, deadline: float | None) -> Any:
        here = self._own.GetSnapshot
        return self._homes.send("GetSnapshot", "snapshot", request.snapshot_id, request, deadline, here)

    def ListSnapshots(self, request: pb.ListSnapshotsRequest, deadline: float | None) -> Any:
        """A filter names one node, or none that has anything."""
        kind, text = ("snapshot", request.snapshot_id) if request.snapshot_id else ("volume", request.source_volume_id)
        if not text:
            return self._listed("ListSnapshots", b.ListSnapshots, request, deadline, self._rest.ListSnapshots)
        try:
            return self._homes.send("ListSnapshots", kind, text, request, deadline, self._own.ListSnapshots)
        except NotFound:
            return pb.ListSnapshotsResponse()

    def ControllerExpandVolume(self, request: pb.ControllerExpandVolumeRequest, deadline: float | None) -> Any:
        return self._to("ControllerExpandVolume", request, deadline, self._own.ControllerExpandVolume)

    def ControllerGetVolume(self, request: pb.ControllerGetVolumeRequest, deadline: float | None) -> Any:
        return self._to("ControllerGetVolume", request, deadline, self._own.ControllerGetVolume)

    def ControllerModifyVolume(self, request: pb.ControllerModifyVolumeRequest, deadline: float | None) -> Any:
        return self._to("ControllerModifyVolume", request, deadline, self._own.ControllerModifyVolume)

    def ControllerListVolumeHealth(self, request: pb.ControllerListVolumeHealthRequest, deadline: float | None) -> Any:
        here = self._rest.ControllerListVolumeHealth
        return self._listed("ControllerListVolumeHealth", b.VolumeHealthLister, request, deadline, here)

    def ControllerGetVolumeHealth(self, request: pb.ControllerGetVolumeHealthRequest, deadline: float | None) -> Any:
        return self._to("ControllerGetVolumeHealth", request, deadline, self._own.ControllerGetVolumeHealth)

    def _to(self, rpc: str, request: Any, deadline: float | None, here: Any) -> Any:
        """Send an RPC about one volume to where it is."""
        return self._homes.send(rpc, "volume", request.volume_id, request, deadline, here)

    def _listed(
        self, rpc: str, feature: type[Backend], request: Any, deadline: float | None, here: Callable[..., Any]
    ) -> Any:
        if not self._some_local(feature):
            return here(request, deadline)
        return self._gathering.listed(rpc, request, lambda one: here(one, deadline), deadline)

    def _some_local(self, feature: type[Backend]) -> bool:
        """Whether a node-local instance has a feature: else nodes offer nothing to gather."""
        backends = [instance.backend for instance in self._core.registry]
        return any(isinstance(one, NodeLocal) and isinstance(one, feature) for one in backends)


class ClusterGroupController:
    """The GroupController service."""

    def __init__(self, core: ServiceContext, nodes: Nodes) -> None:
        self._homes = Homes(core, nodes)
        self._own = GroupControllerService(core)

    def GroupControllerGetCapabilities(self, request: Any, deadline: float | None) -> Any:
        return self._own.GroupControllerGetCapabilities(request, deadline)

    def CreateVolumeGroupSnapshot(self, request: pb.CreateVolumeGroupSnapshotRequest, deadline: float | None) -> Any:
        homes = {self._homes.of("volume", one) for one in request.source_volume_ids}
        if len(homes) > 1:
            places = ", ".join(sorted(repr(home) for home in homes if home))
            raise InvalidArgument(
                f"source_volume_ids: no point in time is common to volumes on different nodes: {places}"
            )
        rpc, first = "CreateVolumeGroupSnapshot", request.source_volume_ids[0]
        self._homes.refuse_taken(rpc, "volume", first, request, deadline)
        return self._homes.send(rpc, "volume", first, request, deadline, self._own.CreateVolumeGroupSnapshot)

    def DeleteVolumeGroupSnapshot(self, request: pb.DeleteVolumeGroupSnapshotRequest, deadline: float | None) -> Any:
        rpc, group, here = "DeleteVolumeGroupSnapshot", request.group_snapshot_id, self._own.DeleteVolumeGroupSnapshot
        return self._homes.remove(rpc, "group snapshot", group, request, deadline, here)

    def GetVolumeGroupSnapshot(self, request: pb.GetVolumeGroupSnapshotRequest, deadline: float | None) -> Any:
        rpc, group, here = "GetVolumeGroupSnapshot", request.group_snapshot_id, self._own.GetVolumeGroupSnapshot
        return self._homes.send(rpc, "group snapshot", group, request, deadline, here)
