"""The GroupController service."""

from __future__ import annotations

from typing import Any

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import GroupSnapshots
from ..contract.errors import InvalidArgument, NotFound
from ..contract.model import GroupSnapshotRequest
from ..contract.params import normalize_keys, parse
from ..core import idempotent
from ..core.idempotent import digest, require
from ..loading.instance import Instance
from . import convert
from .service_context import ServiceContext, split_metadata


class GroupControllerService:
    """Snapshots of several volumes at one point in time; all members belong to one instance."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def GroupControllerGetCapabilities(self, request: Any, deadline: float | None) -> Any:
        rpc = pb.GroupControllerServiceCapability.RPC
        names = self._context.advertised.of("group")
        items = [pb.GroupControllerServiceCapability(rpc=rpc(type=name)) for name in names]
        return pb.GroupControllerGetCapabilitiesResponse(capabilities=items)

    def CreateVolumeGroupSnapshot(
        self, request: pb.CreateVolumeGroupSnapshotRequest, deadline: float | None
    ) -> pb.CreateVolumeGroupSnapshotResponse:
        if len(set(request.source_volume_ids)) < len(request.source_volume_ids):
            raise InvalidArgument("source_volume_ids: a volume is listed twice")
        found = [self._context.volume(volume_id) for volume_id in request.source_volume_ids]
        instance = found[0][0]
        if any(other is not instance for other, _ in found):
            raise InvalidArgument("source_volume_ids: all volumes of a group must belong to one backend")
        backend = require(instance.backend, GroupSnapshots, "CreateVolumeGroupSnapshot")
        _, given = split_metadata(request.parameters)
        schema = type(backend).GroupSnapshotParameters
        given = normalize_keys(schema, given, "parameters")
        group_request = GroupSnapshotRequest(
            stamp=self._context.stamp(request.name, digest(given)),
            sources=tuple(handle for _, handle in found),
            parameters=parse(schema, given, "parameters"),
            secrets=dict(request.secrets),
            deadline=deadline,
        )
        group = idempotent.create_group_snapshot(backend, group_request)
        return pb.CreateVolumeGroupSnapshotResponse(group_snapshot=convert.group(instance, group))

    def DeleteVolumeGroupSnapshot(
        self, request: pb.DeleteVolumeGroupSnapshotRequest, deadline: float | None
    ) -> pb.DeleteVolumeGroupSnapshotResponse:
        if not self._context.find_for_deletion("group snapshot", request.group_snapshot_id):
            return pb.DeleteVolumeGroupSnapshotResponse()
        try:
            _, backend, handle = self._find_checked(request)
        except NotFound:
            return pb.DeleteVolumeGroupSnapshotResponse()
        idempotent.delete_group_snapshot(backend, handle, dict(request.secrets))
        return pb.DeleteVolumeGroupSnapshotResponse()

    def GetVolumeGroupSnapshot(
        self, request: pb.GetVolumeGroupSnapshotRequest, deadline: float | None
    ) -> pb.GetVolumeGroupSnapshotResponse:
        instance, backend, handle = self._find_checked(request)
        group = backend.get_group_snapshot(handle)
        return pb.GetVolumeGroupSnapshotResponse(group_snapshot=convert.group(instance, group))

    def _find_checked(self, request: Any) -> tuple[Instance, GroupSnapshots, str]:
        """Return the group after comparing its members; existence comes first, because csi-sanity sends no members."""
        instance, handle = self._context.group(request.group_snapshot_id)
        backend = require(instance.backend, GroupSnapshots, "group snapshots")
        group = backend.get_group_snapshot(handle)
        members = sorted(ids.join(instance.name, member.handle) for member in group.snapshots)
        if sorted(request.snapshot_ids) != members:
            raise InvalidArgument(f"snapshot_ids must be exactly the members of the group: {members}")
        return instance, backend, handle
