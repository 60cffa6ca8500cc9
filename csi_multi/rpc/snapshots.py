"""The Controller service, RPCs of snapshots and of volume health."""

from __future__ import annotations

from contextlib import suppress

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import ListSnapshots, Snapshots, VolumeHealthLister, VolumeHealthReporter
from ..contract.errors import InvalidArgument, NotFound
from ..contract.model import Page, PageRequest, Snapshot, SnapshotRequest
from ..contract.params import normalize_keys, parse
from ..core import filesystems, idempotent, mixed_groups
from ..core.idempotent import digest, require
from ..loading.instance import Instance
from . import convert
from .listing import list_over_instances
from .service_context import ServiceContext, split_metadata


class ControllerSnapshots:
    """The RPCs of the Controller service that are about snapshots and volume health."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def CreateSnapshot(self, request: pb.CreateSnapshotRequest, deadline: float | None) -> pb.CreateSnapshotResponse:
        instance, source = self._context.volume(request.source_volume_id)
        backend = require(instance.backend, Snapshots, "CreateSnapshot")
        metadata, given = split_metadata(request.parameters)
        schema = type(backend).SnapshotParameters
        given = normalize_keys(schema, given, "parameters")
        snapshot_request = SnapshotRequest(
            stamp=self._context.stamp(
                request.name, digest(given), context=filesystems.snapshot_context(backend, source)
            ),
            source=source,
            parameters=parse(schema, given, "parameters"),
            metadata=metadata,
            secrets=dict(request.secrets),
            deadline=deadline,
        )
        return pb.CreateSnapshotResponse(
            snapshot=convert.snapshot(instance, idempotent.create_snapshot(backend, snapshot_request))
        )

    def DeleteSnapshot(self, request: pb.DeleteSnapshotRequest, deadline: float | None) -> pb.DeleteSnapshotResponse:
        if found := self._context.find_for_deletion("snapshot", request.snapshot_id):
            instance, handle = found
            backend = require(instance.backend, Snapshots, "DeleteSnapshot")
            _refuse_member(backend, handle)
            idempotent.delete_snapshot(backend, handle, dict(request.secrets))
        return pb.DeleteSnapshotResponse()

    def GetSnapshot(self, request: pb.GetSnapshotRequest, deadline: float | None) -> pb.GetSnapshotResponse:
        instance, handle = self._context.snapshot(request.snapshot_id)
        found = require(instance.backend, Snapshots, "GetSnapshot").get_snapshot(handle)
        return pb.GetSnapshotResponse(snapshot=convert.snapshot(instance, found))

    def ListSnapshots(self, request: pb.ListSnapshotsRequest, deadline: float | None) -> pb.ListSnapshotsResponse:
        entries, token = self._entries(request)
        return pb.ListSnapshotsResponse(entries=entries, next_token=token)

    def _entries(self, request: pb.ListSnapshotsRequest) -> tuple[list[pb.ListSnapshotsResponse.Entry], str]:
        """Return the entries and the next token. A filter without a match gives no entries (csi-spec ListSnapshots)."""
        only, source = "", None
        try:
            if request.snapshot_id:
                return self._single_entry(request), ""
            if request.source_volume_id:
                only, source = ids.split("volume", request.source_volume_id)
        except NotFound:
            return [], ""

        def read(backend: ListSnapshots, page: PageRequest) -> Page[Snapshot]:
            return backend.list_snapshots(page, source)

        limit, token = request.max_entries, request.starting_token
        return list_over_instances(self._context.registry, ListSnapshots, read, _entry, limit, token, only)

    def _single_entry(self, request: pb.ListSnapshotsRequest) -> list[pb.ListSnapshotsResponse.Entry]:
        instance, handle = self._context.snapshot(request.snapshot_id)
        if not isinstance(instance.backend, Snapshots):
            return []
        found = instance.backend.get_snapshot(handle)
        source = request.source_volume_id
        return [] if source and source != ids.join(instance.name, found.source) else [_entry(instance, found)]

    def ControllerGetVolumeHealth(
        self, request: pb.ControllerGetVolumeHealthRequest, deadline: float | None
    ) -> pb.ControllerGetVolumeHealthResponse:
        instance, handle = self._context.volume(request.volume_id)
        backend = require(instance.backend, VolumeHealthReporter, "ControllerGetVolumeHealth")
        entries = backend.volume_health(handle, dict(request.secrets))
        return pb.ControllerGetVolumeHealthResponse(volume_health=convert.health(request.volume_id, entries))

    def ControllerListVolumeHealth(
        self, request: pb.ControllerListVolumeHealthRequest, deadline: float | None
    ) -> pb.ControllerListVolumeHealthResponse:
        secrets = dict(request.secrets)
        entries, token = list_over_instances(
            self._context.registry,
            VolumeHealthLister,
            lambda backend, page: backend.list_volume_health(page, secrets),
            lambda instance, item: convert.health(ids.join(instance.name, item.handle), item.entries),
            request.max_entries,
            request.starting_token,
        )
        return pb.ControllerListVolumeHealthResponse(entries=entries, next_token=token)


def _refuse_member(backend: Snapshots, handle: str) -> None:
    """Raise InvalidArgument for a member of a group that the driver cut itself, which its backend does not know."""
    if not mixed_groups.may_be_member(handle):
        return
    with suppress(NotFound):
        if group := mixed_groups.group_of(backend.get_snapshot(handle).stamp.context):
            raise InvalidArgument(
                f"snapshot {handle!r} is a member of group snapshot {group!r} and is deleted with it only; delete the "
                "group"
            )


def _entry(instance: Instance, item: Snapshot) -> pb.ListSnapshotsResponse.Entry:
    return pb.ListSnapshotsResponse.Entry(snapshot=convert.snapshot(instance, item))
