"""The Controller service, RPCs of volumes: convert the request, find the instance, call the idempotent core."""

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
)
from ..core import filesystems, idempotent, topology
from ..core.filesystems import AUTO, FS_TYPE
from ..core.idempotent import require
from ..loading.instance import Instance
from ..node import encryption_options
from ..node.mkfs_options import require_supported
from . import convert
from .listing import list_over_instances
from .service_context import ServiceContext, class_parameters, mutable_parameters
from .volume_requests import volume_request


class ControllerVolumes:
    """The RPCs of the Controller service that are about volumes."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def ControllerGetCapabilities(self, request: Any, deadline: float | None) -> pb.ControllerGetCapabilitiesResponse:
        rpc = pb.ControllerServiceCapability.RPC
        names = self._context.advertised.of("controller")
        items = [pb.ControllerServiceCapability(rpc=rpc(type=name)) for name in names]
        return pb.ControllerGetCapabilitiesResponse(capabilities=items)

    def CreateVolume(self, request: pb.CreateVolumeRequest, deadline: float | None) -> pb.CreateVolumeResponse:
        parameters, wanted = volume_request(self._context, request, deadline)
        volume = idempotent.create_volume(parameters.instance.backend, wanted, self._context.driver.node)
        return pb.CreateVolumeResponse(volume=self._volume(parameters.instance, volume))

    def DeleteVolume(self, request: pb.DeleteVolumeRequest, deadline: float | None) -> pb.DeleteVolumeResponse:
        if found := self._context.find_for_deletion("volume", request.volume_id):
            instance, handle = found
            idempotent.delete_volume(instance.backend, handle, dict(request.secrets))
        return pb.DeleteVolumeResponse()

    def ControllerPublishVolume(
        self, request: pb.ControllerPublishVolumeRequest, deadline: float | None
    ) -> pb.ControllerPublishVolumeResponse:
        """Attach the volume; for a backend without Attach only check that the node can reach it."""
        instance, handle = self._context.volume(request.volume_id)
        if isinstance(instance.backend, Attach):
            return self._attach(instance, instance.backend, handle, request, deadline)
        volume = instance.backend.get_volume(handle)
        node, _ = self._node_and_capability(instance, handle, request)
        self._refuse_unreachable(instance, volume, node.name)
        return pb.ControllerPublishVolumeResponse()

    def _attach(
        self, instance: Instance, backend: Attach, handle: str, request: Any, deadline: float | None
    ) -> pb.ControllerPublishVolumeResponse:
        """Attach without get_volume first: attach itself raises NotFound, and a second read would slow every call."""
        node, capability = self._node_and_capability(instance, handle, request)
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

    def _node_and_capability(self, instance: Instance, handle: str, request: Any) -> tuple[Node, Capability]:
        """Return the node and the capability of a publication. Raises when no volume can be published like this."""
        capability = convert.capability(request.volume_capability)
        node = ids.split_node(request.node_id, instance.name)
        if isinstance(instance.backend, NodeLocal) and instance.backend.node_of(handle) != node.name:
            home = instance.backend.node_of(handle)
            raise FailedPrecondition(
                f"volume {request.volume_id!r} is local to node {home!r} and cannot be used on node {node.name!r}"
            )
        if reason := instance.backend.unsupported(capability):
            raise InvalidArgument(f"volume_capability: {reason}")
        return node, capability

    def _refuse_unreachable(self, instance: Instance, volume: Volume, node: str) -> None:
        """Raise FailedPrecondition for a node outside the volume's topology; a node of unknown segments is accepted."""
        segments, places = self._context.node_segments(node), topology.of_volume(instance.backend, volume)
        if segments is not None and places and not any(topology.is_inside(segments, place) for place in places):
            allowed = " or ".join(", ".join(f"{key}={value}" for key, value in place.items()) for place in places)
            raise FailedPrecondition(
                f"volume {ids.join(instance.name, volume.handle)!r} is reachable from {allowed} only; node {node!r} "
                f"has {', '.join(f'{key}={value}' for key, value in segments.items()) or 'no segments'}"
            )

    def ControllerUnpublishVolume(
        self, request: pb.ControllerUnpublishVolumeRequest, deadline: float | None
    ) -> pb.ControllerUnpublishVolumeResponse:
        found = self._context.find_for_detaching(request.volume_id)
        if not found:
            return pb.ControllerUnpublishVolumeResponse()
        instance, handle = found
        try:
            node = ids.split_node(request.node_id, instance.name) if request.node_id else None
        except NotFound:
            return pb.ControllerUnpublishVolumeResponse()
        if isinstance(instance.backend, Attach):
            idempotent.detach(instance.backend, handle, node, dict(request.secrets))
        return pb.ControllerUnpublishVolumeResponse()

    def ValidateVolumeCapabilities(
        self, request: pb.ValidateVolumeCapabilitiesRequest, deadline: float | None
    ) -> pb.ValidateVolumeCapabilitiesResponse:
        instance, handle = self._context.volume(request.volume_id)
        volume = instance.backend.get_volume(handle)
        if reason := self._mismatch(request, instance, handle, dict(volume.stamp.context)):
            return pb.ValidateVolumeCapabilitiesResponse(message=reason)
        confirmed = pb.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
            mutable_parameters=request.mutable_parameters,
        )
        return pb.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def _mismatch(
        self, request: pb.ValidateVolumeCapabilitiesRequest, instance: Instance, handle: str, context: dict[str, str]
    ) -> str:
        """Return why the volume does not support the request; "" when it does."""
        try:
            own, fs_type = None, ""
            if request.parameters:
                given = {"backend": instance.name, **request.parameters}
                parameters = class_parameters(self._context.registry, given, request.mutable_parameters)
                if parameters.instance is not instance:
                    return f"the volume belongs to backend {instance.name!r}, not to {parameters.instance.name!r}"
                own, fs_type = parameters.own, parameters.fs_type
            mutable = mutable_parameters(instance.backend, request.mutable_parameters)
            modify = instance.backend if isinstance(instance.backend, Modify) and mutable is not None else None
            if modify and (reason := modify.unmodifiable(handle, mutable)):
                return f"mutable_parameters: {reason}"
            for one in convert.capabilities(request.volume_capabilities):
                if reason := _unusable(instance.backend, one, own):
                    return reason
                made = context.get(FS_TYPE, "")
                wanted = {one.mount.fs_type, fs_type} - {"", made} if one.mount and made not in ("", AUTO) else ()
                if wanted:
                    return f"the volume has filesystem {made!r}, not {min(wanted)!r}"
        except InvalidArgument as error:
            return str(error)
        differs = request.volume_context and dict(request.volume_context) != context
        return "volume_context differs from the context of this volume" if differs else ""

    def ListVolumes(self, request: pb.ListVolumesRequest, deadline: float | None) -> pb.ListVolumesResponse:
        entries, token = list_over_instances(
            self._context.registry,
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
        instance, handle = self._context.volume(request.volume_id)
        volume = instance.backend.get_volume(handle)
        status = pb.ControllerGetVolumeResponse.VolumeStatus(published_node_ids=volume.published_nodes)
        return pb.ControllerGetVolumeResponse(volume=self._volume(instance, volume), status=status)

    def GetCapacity(self, request: pb.GetCapacityRequest, deadline: float | None) -> pb.GetCapacityResponse:
        """Report the StorageClass's instance; without class and default the sum of all instances.

        An instance that does not know its capacity counts as unlimited, and so does a sum with it.
        """
        capabilities = convert.capabilities(request.volume_capabilities)
        segments = self._context.segments(request.accessible_topology) if request.accessible_topology.segments else None
        if request.parameters or self._context.driver.default_backend:
            parameters = class_parameters(self._context.registry, request.parameters, {})
            instances, own, overhead = [parameters.instance], parameters.own, parameters.engine.overhead
        else:
            instances, own, overhead = list(self._context.registry), None, 0
        capacity_request = CapacityRequest(capabilities=capabilities, parameters=own, segments=segments)
        found = [
            idempotent.capacity(instance.backend, capacity_request, self._context.driver.node)
            for instance in instances
            if not any(map(_unknown_filesystem, capabilities))
        ]
        reports = [encryption_options.capacity_without(report, overhead) for report in found if report]
        available = sum(report.available for report in reports)
        response = pb.GetCapacityResponse(available_capacity=min(available, UNLIMITED))
        # Where it is given, the scheduler looks at the largest volume only, not at what is available.
        largest = [min(report.maximum, report.available) for report in reports if report.maximum is not None]
        if largest and len(largest) == len(reports):  # an instance without a limit has no largest volume
            response.maximum_volume_size.value = max(largest)
        if smallest := [report.minimum for report in reports if report.minimum is not None]:
            response.minimum_volume_size.value = min(smallest)
        return response

    def ControllerExpandVolume(
        self, request: pb.ControllerExpandVolumeRequest, deadline: float | None
    ) -> pb.ControllerExpandVolumeResponse:
        instance, handle = self._context.volume(request.volume_id)
        backend = require(instance.backend, Expand, "ControllerExpandVolume")
        given = request.HasField("volume_capability")
        capability = convert.capability(request.volume_capability) if given else None
        if capability and (reason := backend.unsupported(capability)):
            raise InvalidArgument(f"volume_capability: {reason}")
        overhead = encryption_options.overhead(filesystems.volume_context(backend, handle))
        expand_request = ExpandRequest(
            handle=handle,
            size=encryption_options.with_overhead(convert.size_range(request.capacity_range), overhead),
            capability=capability,
            secrets=dict(request.secrets),
            deadline=deadline,
        )
        expansion = idempotent.expand_volume(backend, expand_request)
        return pb.ControllerExpandVolumeResponse(
            capacity_bytes=expansion.size - overhead, node_expansion_required=expansion.node_required
        )

    def ControllerModifyVolume(
        self, request: pb.ControllerModifyVolumeRequest, deadline: float | None
    ) -> pb.ControllerModifyVolumeResponse:
        instance, handle = self._context.volume(request.volume_id)
        backend = require(instance.backend, Modify, "ControllerModifyVolume")
        mutable = mutable_parameters(backend, request.mutable_parameters)
        secrets = dict(request.secrets)
        backend.modify_volume(ModifyRequest(handle=handle, mutable=mutable, secrets=secrets, deadline=deadline))
        return pb.ControllerModifyVolumeResponse()

    def _volume(self, instance: Instance, volume: Any) -> pb.Volume:
        return convert.volume(self._context.driver.name, instance, volume)


def _unusable(backend: Backend, capability: Capability, parameters: Any) -> str:
    """Return why no volume of the backend can be used like this; "" if one can."""
    return _unknown_filesystem(capability) or backend.unsupported(capability, parameters)


def _unknown_filesystem(capability: Capability) -> str:
    if capability.mount and capability.mount.fs_type:
        try:
            require_supported(capability.mount.fs_type)
        except InvalidArgument as error:
            return str(error)
    return ""
