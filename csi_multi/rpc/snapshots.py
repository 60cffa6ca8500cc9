"""The Controller service, snapshots and health; the GroupController and SnapshotMetadata services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import idempotent, ids
from .._proto import csi_pb2 as pb
from ..backend import (
    ChangedBlocks,
    GroupSnapshots,
    ListSnapshots,
    Snapshots,
    VolumeHealthLister,
    VolumeHealthReporter,
)
from ..errors import InvalidArgument, NotFound
from ..idempotent import digest, require
from ..model import BlockMap, Extent, GroupSnapshotRequest, Page, PageRequest, Snapshot, SnapshotRequest
from ..params import parse
from ..registry import Instance
from . import convert
from .listing import gather
from .service import Core, split_metadata

BLOCKS_PER_MESSAGE = 1024


class SnapshotsAndHealth:
    """The half of the Controller service that is about snapshots and health."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def CreateSnapshot(self, request: pb.CreateSnapshotRequest, deadline: float | None) -> pb.CreateSnapshotResponse:
        instance, source = self._core.volume(request.source_volume_id)
        backend = require(instance.backend, Snapshots, "CreateSnapshot")
        metadata, given = split_metadata(request.parameters)
        wanted = SnapshotRequest(
            stamp=self._core.stamp(request.name, digest(given)),
            source=source,
            parameters=parse(type(backend).SnapshotParameters, given, "parameters"),
            metadata=metadata,
            secrets=dict(request.secrets),
            deadline=deadline,
        )
        return pb.CreateSnapshotResponse(
            snapshot=convert.snapshot(instance, idempotent.create_snapshot(backend, wanted))
        )

    def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, deadline: float | None) -> pb.DeleteSnapshotResponse:
        try:
            instance, handle = self._core.snapshot(request.snapshot_id)
        except NotFound:
            return pb.DeleteSnapshotResponse()
        backend = require(instance.backend, Snapshots, "DeleteSnapshot")
        idempotent.delete_snapshot(backend, handle, dict(request.secrets))
        return pb.DeleteSnapshotResponse()

    def GetSnapshot(self, request: pb.GetSnapshotRequest, deadline: float | None) -> pb.GetSnapshotResponse:
        instance, handle = self._core.snapshot(request.snapshot_id)
        found = require(instance.backend, Snapshots, "GetSnapshot").get_snapshot(handle)
        return pb.GetSnapshotResponse(snapshot=convert.snapshot(instance, found))

    def ListSnapshots(self, request: pb.ListSnapshotsRequest, deadline: float | None) -> pb.ListSnapshotsResponse:
        rows, token = self._rows(request)
        entries = [pb.ListSnapshotsResponse.Entry(snapshot=convert.snapshot(*row)) for row in rows]
        return pb.ListSnapshotsResponse(entries=entries, next_token=token)

    def _rows(self, request: pb.ListSnapshotsRequest) -> tuple[list[tuple[Instance, Snapshot]], str]:
        """A filter that matches nothing is an empty list, not an error (csi-spec ListSnapshots)."""
        only, source = "", None
        try:
            if request.snapshot_id:
                return self._one(request), ""
            if request.source_volume_id:
                only, source = ids.split("volume", request.source_volume_id)
        except NotFound:
            return [], ""

        def read(backend: ListSnapshots, page: PageRequest) -> Page[Snapshot]:
            return backend.list_snapshots(page, source)

        return gather(self._core.registry, ListSnapshots, read, request.max_entries, request.starting_token, only)

    def _one(self, request: pb.ListSnapshotsRequest) -> list[tuple[Instance, Snapshot]]:
        instance, handle = self._core.snapshot(request.snapshot_id)
        if not isinstance(instance.backend, Snapshots):
            return []
        found = instance.backend.get_snapshot(handle)
        wanted = request.source_volume_id
        return [] if wanted and wanted != ids.join(instance.name, found.source) else [(instance, found)]

    def ControllerGetVolumeHealth(
        self, request: pb.ControllerGetVolumeHealthRequest, deadline: float | None
    ) -> pb.ControllerGetVolumeHealthResponse:
        instance, handle = self._core.volume(request.volume_id)
        backend = require(instance.backend, VolumeHealthReporter, "ControllerGetVolumeHealth")
        entries = backend.volume_health(handle, dict(request.secrets))
        return pb.ControllerGetVolumeHealthResponse(volume_health=convert.health(request.volume_id, entries))

    def ControllerListVolumeHealth(
        self, request: pb.ControllerListVolumeHealthRequest, deadline: float | None
    ) -> pb.ControllerListVolumeHealthResponse:
        secrets = dict(request.secrets)
        rows, token = gather(
            self._core.registry,
            VolumeHealthLister,
            lambda backend, page: backend.list_volume_health(page, secrets),
            request.max_entries,
            request.starting_token,
        )
        entries = [convert.health(ids.join(instance.name, item.handle), item.entries) for instance, item in rows]
        return pb.ControllerListVolumeHealthResponse(entries=entries, next_token=token)


class GroupController:
    """Snapshots of several volumes at one point in time; all members belong to one instance."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def GroupControllerGetCapabilities(self, request: Any, deadline: float | None) -> Any:
        rpc = pb.GroupControllerServiceCapability.RPC
        names = self._core.advertised.of("group")
        items = [pb.GroupControllerServiceCapability(rpc=rpc(type=name)) for name in names]
        return pb.GroupControllerGetCapabilitiesResponse(capabilities=items)

    def CreateVolumeGroupSnapshot(
        self, request: pb.CreateVolumeGroupSnapshotRequest, deadline: float | None
    ) -> pb.CreateVolumeGroupSnapshotResponse:
        if len(set(request.source_volume_ids)) < len(request.source_volume_ids):
            raise InvalidArgument("source_volume_ids: a volume is named twice")
        found = [self._core.volume(volume_id) for volume_id in request.source_volume_ids]
        instance = found[0][0]
        if any(other is not instance for other, _ in found):
            raise InvalidArgument("source_volume_ids: all volumes of a group must belong to one backend")
        backend = require(instance.backend, GroupSnapshots, "CreateVolumeGroupSnapshot")
        _, given = split_metadata(request.parameters)
        wanted = GroupSnapshotRequest(
            stamp=self._core.stamp(request.name, digest(given)),
            sources=tuple(handle for _, handle in found),
            parameters=parse(type(backend).GroupSnapshotParameters, given, "parameters"),
            secrets=dict(request.secrets),
            deadline=deadline,
        )
        group = idempotent.create_group_snapshot(backend, wanted)
        return pb.CreateVolumeGroupSnapshotResponse(group_snapshot=convert.group(instance, group))

    def DeleteVolumeGroupSnapshot(
        self, request: pb.DeleteVolumeGroupSnapshotRequest, deadline: float | None
    ) -> pb.DeleteVolumeGroupSnapshotResponse:
        try:
            _, backend, handle = self._checked(request)
        except NotFound:
            return pb.DeleteVolumeGroupSnapshotResponse()
        idempotent.delete_group_snapshot(backend, handle, dict(request.secrets))
        return pb.DeleteVolumeGroupSnapshotResponse()

    def GetVolumeGroupSnapshot(
        self, request: pb.GetVolumeGroupSnapshotRequest, deadline: float | None
    ) -> pb.GetVolumeGroupSnapshotResponse:
        instance, backend, handle = self._checked(request)
        group = backend.get_group_snapshot(handle)
        return pb.GetVolumeGroupSnapshotResponse(group_snapshot=convert.group(instance, group))

    def _checked(self, request: Any) -> tuple[Instance, GroupSnapshots, str]:
        """Existence is checked before the list of members: csi-sanity sends an empty one."""
        instance, handle = self._core.group(request.group_snapshot_id)
        backend = require(instance.backend, GroupSnapshots, "group snapshots")
        group = backend.get_group_snapshot(handle)
        members = sorted(ids.join(instance.name, member.handle) for member in group.snapshots)
        if sorted(request.snapshot_ids) != members:
            raise InvalidArgument(f"snapshot_ids are not the group's members, which are {members}")
        return instance, backend, handle


class SnapshotMetadata:
    """Allocated and changed blocks of snapshots, as streams."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def GetMetadataAllocated(self, request: pb.GetMetadataAllocatedRequest, deadline: float | None) -> Iterator[Any]:
        instance, handle = self._core.snapshot(request.snapshot_id)
        backend = require(instance.backend, ChangedBlocks, "GetMetadataAllocated")
        found = backend.allocated_blocks(handle, request.starting_offset, dict(request.secrets))
        return _messages(pb.GetMetadataAllocatedResponse, found, request.max_results)

    def GetMetadataDelta(self, request: pb.GetMetadataDeltaRequest, deadline: float | None) -> Iterator[Any]:
        instance, base = self._core.snapshot(request.base_snapshot_id)
        other, target = self._core.snapshot(request.target_snapshot_id)
        if other is not instance:
            raise InvalidArgument("base_snapshot_id and target_snapshot_id belong to different backends")
        backend = require(instance.backend, ChangedBlocks, "GetMetadataDelta")
        _refuse_unrelated(backend.get_snapshot(base), backend.get_snapshot(target))
        found = backend.changed_blocks(base, target, request.starting_offset, dict(request.secrets))
        return _messages(pb.GetMetadataDeltaResponse, found, request.max_results)


def _messages(kind: Any, found: BlockMap, limit: int) -> Iterator[Any]:
    form = pb.BlockMetadataType.FIXED_LENGTH if found.block_size else pb.BlockMetadataType.VARIABLE_LENGTH
    full = min(limit or BLOCKS_PER_MESSAGE, BLOCKS_PER_MESSAGE)
    batch: list[pb.BlockMetadata] = []
    for extent in _in_order(found):
        batch.append(pb.BlockMetadata(byte_offset=extent.offset, size_bytes=extent.length))
        if len(batch) == full:
            yield kind(block_metadata_type=form, volume_capacity_bytes=found.size, block_metadata=batch)
            batch = []
    if batch:
        yield kind(block_metadata_type=form, volume_capacity_bytes=found.size, block_metadata=batch)


def _in_order(found: BlockMap) -> Iterator[Extent]:
    """Let no map pass that would spoil a backup without anybody noticing."""
    end = 0
    for extent in found.extents:
        last = extent.offset + (1 if found.block_size else extent.length)  # a fixed block may end beyond the volume
        if extent.offset < end or extent.length <= 0 or last > found.size or found.block_size not in (0, extent.length):
            raise RuntimeError(f"{extent} cannot follow byte {end} in a map of {found.size} bytes")
        end = extent.offset + extent.length
        yield extent


def _refuse_unrelated(base: Snapshot, target: Snapshot) -> None:
    """Only what changed since an older snapshot of the same volume can be told (csi-spec GetMetadataDelta)."""
    if base.source != target.source:
        raise InvalidArgument(f"snapshots {base.handle!r} and {target.handle!r} are not of one volume")
    if base.created > target.created:
        raise InvalidArgument(f"base snapshot {base.handle!r} is newer than target snapshot {target.handle!r}")
