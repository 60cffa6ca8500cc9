"""The Controller service, volumes: convert, find the instance, delegate to the idempotent core."""

from __future__ import annotations

from typing import Any

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import Attach, Backend, Expand, ListVolumes, Modify, NodeLocal
from ..contract.errors import FailedPrecondition, InvalidArgument, NotFound
from ..contract.model import (
    UNLIMITED,
    AttachRequest,
    Capability,
    CapacityRequest,
    ExpandRequest,
    ModifyRequest,
    Node,
    Volume,
    VolumeRequest,
)
from ..core import idempotent, topology
from ..core.idempotent import FS_TYPE, require
from ..loading.instance import Instance
from ..node.mkfs_options import require_supported, validate_options
from . import convert
from .listing import gather
from .service_context import ClassParameters, Core, class_parameters, mutable_parameters


class Volumes:
    """The half of the Controller service that is about volumes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def ControllerGetCapabilities(self, request: Any, deadline: float | None) -> pb.ControllerGetCapabilitiesResponse:
        rpc = pb.ControllerServiceCapability.RPC
        names = self._core.advertised.of("controller")
        items = [pb.ControllerServiceCapability(rpc=rpc(type=name)) for name in names]
        return pb.ControllerGetCapabilitiesResponse(capabilities=items)

    def CreateVolume(self, request: pb.CreateVolumeRequest, deadline: float | None) -> pb.CreateVolumeResponse:
        parameters, wanted = self.wanted(request, deadline)
        volume = idempotent.create_volume(parameters.instance.backend, wanted, self._core.driver.node)
        return pb.CreateVolumeResponse(volume=self._volume(parameters.instance, volume))

    def wanted(self, request: pb.CreateVolumeRequest, deadline: float | None) -> tuple[ClassParameters, VolumeRequest]:
        """Return which instance a creation is for, and what is asked of it."""
        parameters = class_parameters(self._core.registry, request.parameters, request.mutable_parameters)
        return parameters, self._volume_request(request, parameters, deadline)

    def _volume_request(
        self, request: pb.CreateVolumeRequest, parameters: ClassParameters, deadline: float | None
    ) -> VolumeRequest:
        instance = parameters.instance
        copied = request.HasField("volume_content_source")
        source = convert.source(request.volume_content_source, instance.name) if copied else None
        capabilities = convert.capabilities(request.volume_capabilities)
        fs_types = [one.mount.fs_type or self._core.driver.default_fs_type for one in capabilities if one.mount]
        if len(set(fs_types)) > 1:
            raise InvalidArgument(
                f"volume_capabilities: one volume cannot have the filesystems {sorted(set(fs_types))}"
            )
        for fs_type in fs_types:
            validate_options(parameters.filesystem, fs_type)
        context = parameters.context(fs_types[0] if fs_types else "")
        placed = request.HasField("accessibility_requirements") and topology.constrained(instance.backend)
        return VolumeRequest(
            stamp=self._core.stamp(request.name, parameters.digest, source=source, context=context),
            size=convert.size_range(request.capacity_range),
            capabilities=capabilities,
            parameters=parameters.own,
            mutable=mutable_parameters(instance.backend, request.mutable_parameters),
            topology=convert.requirement(self._core.driver.name, request.accessibility_requirements)
            if placed
            else None,
            metadata=parameters.metadata,
            secrets=dict(request.secrets),
            deadline=deadline,
        )

    def DeleteVolume(self, request: pb.DeleteVolumeRequest, deadline: float | None) -> pb.DeleteVolumeResponse:
        if found := self._core.doomed("volume", request.volume_id):
            instance, handle = found
            idempotent.delete_volume(instance.backend, handle, dict(request.secrets))
        return pb.DeleteVolumeResponse()

    def ControllerPublishVolume(
        self, request: pb.ControllerPublishVolumeRequest, deadline: float | None
    ) -> pb.ControllerPublishVolumeResponse:
        """Attach; where the backend has nothing to attach, only check that the node can reach the volume."""
        instance, handle = self._core.volume(request.volume_id)
        if isinstance(instance.backend, Attach):
            return self._attach(instance, instance.backend, handle, request, deadline)
        volume = instance.backend.get_volume(handle)
        node, _ = self._asked(instance, handle, request)
        self._refuse_unreachable(instance, volume, node.name)
        return pb.ControllerPublishVolumeResponse()

    def _attach(
        self, instance: Instance, backend: Attach, handle: str, request: Any, deadline: float | None
    ) -> pb.ControllerPublishVolumeResponse:
        """attach looks for the volume itself: a look of ours before would cost every attachment a second one."""
        node, capability = self._asked(instance, handle, request)
        context = backend.attach(
            AttachRequest(
                handle=handle,
                node=node,
                capability=capability,
                read_only=request.readonly,
                context=dict(request.volume_context),
                secrets=dict(request.secrets),
                deadline=deadline,
            )
        )
        return pb.ControllerPublishVolumeResponse(publish_context=context)

    def _asked(self, instance: Instance, handle: str, request: Any) -> tuple[Node, Capability]:
        """Return the node and the use of a publication. Raises what rules them out for any volume of this handle."""
        capability = convert.capability(request.volume_capability)
        node = ids.split_node(request.node_id, instance.name)
        if isinstance(instance.backend, NodeLocal) and instance.backend.node_of(handle) != node.name:
            home = instance.backend.node_of(handle)
            raise FailedPrecondition(f"volume {request.volume_id!r} lives on node {home!r} and cannot leave it")
        if reason := instance.backend.unsupported(capability):
            raise InvalidArgument(f"volume_capability: {reason}")
        return node, capability

    def _refuse_unreachable(self, instance: Instance, volume: Volume, node: str) -> None:
        """A node whose place is not known is not refused: the device does not open there, and it says why."""
        here, places = self._core.places(node), topology.of_volume(instance.backend, volume)
        if here is not None and places and not any(topology.covers(here, place) for place in places):
            wanted = " or ".join(", ".join(f"{key}={value}" for key, value in place.items()) for place in places)
            raise FailedPrecondition(
                f"volume {ids.join(instance.name, volume.handle)!r} can be reached from {wanted} only; node {node!r} "
                f"is in {', '.join(f'{key}={value}' for key, value in here.items()) or 'no such place'}"
            )

    def ControllerUnpublishVolume(
        self, request: pb.ControllerUnpublishVolumeRequest, deadline: float | None
    ) -> pb.ControllerUnpublishVolumeResponse:
        try:
            instance, handle = self._core.volume(request.volume_id)
            node = ids.split_node(request.node_id, instance.name) if request.node_id else None
        except NotFound:
            return pb.ControllerUnpublishVolumeResponse()
        if isinstance(instance.backend, Attach):
            idempotent.detach(instance.backend, handle, node, dict(request.secrets))
        return pb.ControllerUnpublishVolumeResponse()

    def ValidateVolumeCapabilities(
        self, request: pb.ValidateVolumeCapabilitiesRequest, deadline: float | None
    ) -> pb.ValidateVolumeCapabilitiesResponse:
        instance, handle = self._core.volume(request.volume_id)
        volume = instance.backend.get_volume(handle)
        if reason := self._objection(request, instance, dict(volume.stamp.context)):
            return pb.ValidateVolumeCapabilitiesResponse(message=reason)
        confirmed = pb.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
            mutable_parameters=request.mutable_parameters,
        )
        return pb.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def _objection(
        self, request: pb.ValidateVolumeCapabilitiesRequest, instance: Instance, context: dict[str, str]
    ) -> str:
        """Why the volume does not support all that is asked; "" when it does."""
        try:
            own = None
            if request.parameters:
                given = {"backend": instance.name, **request.parameters}
                parameters = class_parameters(self._core.registry, given, request.mutable_parameters)
                if parameters.instance is not instance:
                    return f"the volume belongs to backend {instance.name!r}, not {parameters.instance.name!r}"
                own = parameters.own
            mutable_parameters(instance.backend, request.mutable_parameters)
            for one in convert.capabilities(request.volume_capabilities):
                if reason := _unusable(instance.backend, one, own):
                    return reason
                made = context.get(FS_TYPE, "")
                if one.mount and made and one.mount.fs_type not in ("", made):
                    return f"the volume is for filesystem {made!r}, not {one.mount.fs_type!r}"
        except InvalidArgument as error:
            return str(error)
        differs = request.volume_context and dict(request.volume_context) != context
        return "volume_context is not this volume's" if differs else ""

    def ListVolumes(self, request: pb.ListVolumesRequest, deadline: float | None) -> pb.ListVolumesResponse:
        entries, token = gather(
            self._core.registry,
            ListVolumes,
            lambda backend, page: backend.list_volumes(page),
            self._entry,
            request.max_entries,
            request.starting_token,
        )
        return pb.ListVolumesResponse(entries=entries, next_token=token)

    def _entry(self, instance: Instance, volume: Volume) -> pb.ListVolumesResponse.Entry:
        status = pb.ListVolumesResponse.VolumeStatus(published_node_ids=volume.published_nodes)
        return pb.ListVolumesResponse.Entry(volume=self._volume(instance, volume), status=status)

    def ControllerGetVolume(
        self, request: pb.ControllerGetVolumeRequest, deadline: float | None
    ) -> pb.ControllerGetVolumeResponse:
        instance, handle = self._core.volume(request.volume_id)
        volume = instance.backend.get_volume(handle)
        status = pb.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=volume.published_nodes)
        return pb.ControllerGetVolumeResponse(volume=self._volume(instance, volume), status=status)

    def GetCapacity(self, request: pb.GetCapacityRequest, deadline: float | None) -> pb.GetCapacityResponse:
        """Answer for the StorageClass's instance; with neither class nor default, for all together.

        An instance that does not know its capacity has no known limit, so all together have none either.
        """
        capabilities = convert.capabilities(request.volume_capabilities)
        segments = self._core.segments(request.accessible_topology) if request.accessible_topology.segments else None
        if request.parameters or self._core.driver.default_backend:
            parameters = class_parameters(self._core.registry, request.parameters, {})
            instances, own = [parameters.instance], parameters.own
        else:
            instances, own = list(self._core.registry), None
        wanted = CapacityRequest(capabilities=capabilities, parameters=own, segments=segments)
        asked = [
            idempotent.capacity(instance.backend, wanted, self._core.driver.node)
            for instance in instances
            if not any(map(_unknown_filesystem, capabilities))
        ]
        reports = [report for report in asked if report]
        available = sum(report.available for report in reports)
        response = pb.GetCapacityResponse(available_capacity=min(available, UNLIMITED))
        largest = [report.maximum for report in reports if report.maximum is not None]
        if largest and len(largest) == len(reports):  # one without a limit has no largest volume
            response.maximum_volume_size.value = max(largest)
        if smallest := [report.minimum for report in reports if report.minimum is not None]:
            response.minimum_volume_size.value = min(smallest)
        return response

    def ControllerExpandVolume(
        self, request: pb.ControllerExpandVolumeRequest, deadline: float | None
    ) -> pb.ControllerExpandVolumeResponse:
        instance, handle = self._core.volume(request.volume_id)
        backend = require(instance.backend, Expand, "ControllerExpandVolume")
        given = request.HasField("volume_capability")
        capability = convert.capability(request.volume_capability) if given else None
        if capability and (reason := backend.unsupported(capability)):
            raise InvalidArgument(f"volume_capability: {reason}")
        wanted = ExpandRequest(
            handle=handle,
            size=convert.size_range(request.capacity_range),
            capability=capability,
            secrets=dict(request.secrets),
            deadline=deadline,
        )
        done = idempotent.expand_volume(backend, wanted)
        return pb.ControllerExpandVolumeResponse(capacity_bytes=done.size, node_expansion_required=done.node_required)

    def ControllerModifyVolume(
        self, request: pb.ControllerModifyVolumeRequest, deadline: float | None
    ) -> pb.ControllerModifyVolumeResponse:
        instance, handle = self._core.volume(request.volume_id)
        backend = require(instance.backend, Modify, "ControllerModifyVolume")
        mutable = mutable_parameters(backend, request.mutable_parameters)
        wanted = ModifyRequest(handle=handle, mutable=mutable, secrets=dict(request.secrets), deadline=deadline)
        backend.modify_volume(wanted)
        return pb.ControllerModifyVolumeResponse()

    def _volume(self, instance: Instance, volume: Any) -> pb.Volume:
        return convert.volume(self._core.driver.name, instance, volume)


def _unusable(backend: Backend, capability: Capability, parameters: Any) -> str:
    """Why no volume of the backend can be used like this; "" if it can."""
    return _unknown_filesystem(capability) or backend.unsupported(capability, parameters)


def _unknown_filesystem(capability: Capability) -> str:
    if capability.mount and capability.mount.fs_type:
        try:
            require_supported(capability.mount.fs_type)
        except InvalidArgument as error:
            return str(error)
    return ""
