"""The GroupController service."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import GroupSnapshots
from ..contract.errors import FailedPrecondition, InvalidArgument, NotFound
from ..contract.model import GroupSnapshotRequest
from ..contract.params import Schema, normalize_keys, parse
from ..core import filesystems, idempotent, mixed_groups
from ..core.idempotent import digest, require
from ..loading.instance import Instance
from ..node import encryption_options
from . import convert
from .mixed_groups import KEYS, MixedGroups, split_parameters
from .service_context import ServiceContext, split_metadata


class GroupControllerService:
    """Snapshots of several volumes at one point in time; `mixed`: also of several backends."""

    def __init__(self, context: ServiceContext, mixed: MixedGroups | None = None) -> None:
        self._context = context
        self._mixed = mixed

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
        metadata, given = split_metadata(request.parameters)
        limits, given = split_parameters(given)
        together = all(other is instance for other, _ in found)
        if self._mixed and not (together and isinstance(instance.backend, GroupSnapshots)):
            parse(Schema, given, "parameters", also=KEYS)  # none for backends: the members may belong to several
            volumes = [(text, *one) for text, one in zip(request.source_volume_ids, found, strict=True)]
            mixed = self._mixed.create(request, volumes, limits, metadata, deadline)
            return pb.CreateVolumeGroupSnapshotResponse(group_snapshot=mixed)
        if not together:
            raise InvalidArgument("source_volume_ids: all volumes of a group must belong to one backend")
        backend = require(instance.backend, GroupSnapshots, "CreateVolumeGroupSnapshot")
        schema = type(backend).GroupSnapshotParameters
        given = normalize_keys(schema, given, "parameters")
        group_request = GroupSnapshotRequest(
            stamp=self._context.stamp(
                request.name, digest(given), context=_encryption(backend, [handle for _, handle in found])
            ),
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
        if mixed_groups.is_mixed(request.group_snapshot_id):
            return self._delete_mixed(request)
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
        if mixed_groups.is_mixed(request.group_snapshot_id):
            mixed = self._served_mixed().get(request.group_snapshot_id)
            _refuse_other_members(request, [member.snapshot_id for member in mixed.snapshots])
            return pb.GetVolumeGroupSnapshotResponse(group_snapshot=mixed)
        instance, backend, handle = self._find_checked(request)
        group = backend.get_group_snapshot(handle)
        return pb.GetVolumeGroupSnapshotResponse(group_snapshot=convert.group(instance, group))

    def _find_checked(self, request: Any) -> tuple[Instance, GroupSnapshots, str]:
        """Return the group after comparing its members; existence comes first, because csi-sanity sends no members."""
        instance, handle = self._context.group(request.group_snapshot_id)
        backend = require(instance.backend, GroupSnapshots, "group snapshots")
        group = backend.get_group_snapshot(handle)
        _refuse_other_members(request, [ids.join(instance.name, member.handle) for member in group.snapshots])
        return instance, backend, handle

    def _delete_mixed(self, request: pb.DeleteVolumeGroupSnapshotRequest) -> pb.DeleteVolumeGroupSnapshotResponse:
        with suppress(NotFound):  # of one that is not complete, whatever is left is deleted
            group = self._served_mixed().read(request.group_snapshot_id)
            _refuse_other_members(request, [member.snapshot_id for member in group.snapshots])
        with suppress(NotFound):
            self._served_mixed().delete(request.group_snapshot_id, dict(request.secrets))
        return pb.DeleteVolumeGroupSnapshotResponse()

    def _served_mixed(self) -> MixedGroups:
        if self._mixed is None:
            raise FailedPrecondition(
                "group snapshots across backends are served by a driver in mode all, or in a cluster; use the one that "
                "made it"
            )
        return self._mixed


def _encryption(backend: GroupSnapshots, sources: Sequence[str]) -> dict[str, str]:
    """Return what the members record about their volumes. One stamp is stored with all members.

    Raises FailedPrecondition where only some of the volumes are encrypted.
    """
    key = encryption_options.KEY
    found = {source: filesystems.volume_context(backend, source).get(key, "") for source in sources}
    if len(set(found.values())) > 1:
        encrypted = ", ".join(sorted(source for source, kind in found.items() if kind))
        raise FailedPrecondition(
            f"source_volume_ids: some volumes are encrypted ({encrypted}) and others are not, which one group of this "
            "backend cannot record; make two groups"
        )
    kind = next(iter(found.values()), "")
    return {key: kind} if kind else {}


def _refuse_other_members(request: Any, members: list[str]) -> None:
    if sorted(request.snapshot_ids) != sorted(members):
        raise InvalidArgument(
            f"snapshot_ids: they are not the members of group snapshot {request.group_snapshot_id!r}, which are "
            f"{sorted(members)}; give exactly these"
        )
