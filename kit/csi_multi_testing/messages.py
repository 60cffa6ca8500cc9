"""Conversions of an orchestrator: model -> requests, answers -> model. The reverse of csi_multi.rpc.convert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

import grpc

from csi_multi._proto import csi_pb2 as pb
from csi_multi.contract import (
    Capability,
    Extent,
    GroupSnapshot,
    Health,
    HealthEntry,
    SizeRange,
    Snapshot,
    Source,
    SourceKind,
    Stamp,
    StorageError,
    Strings,
    TopologyRequirement,
    Volume,
    ids,
)
from csi_multi.core import topology
from csi_multi.rpc.status import CODES

from .assertions import CheckFailed

# The class that a code stands for: the first in the table, which is the widest of those that share it.
# The base says nothing, so no code stands for it.
KINDS: dict[grpc.StatusCode, type[StorageError]] = {
    code: kind for kind, code in reversed(CODES.items()) if kind is not StorageError
}
TAKES_SECRETS = frozenset(
    method.name
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if "secrets" in method.input_type.fields_by_name
)


def kind_of(error: type[StorageError]) -> type[StorageError]:
    """Return the class as which this error arrives over CSI."""
    if error is StorageError:
        return error
    return next(KINDS[CODES[one]] for one in error.__mro__ if one in CODES)


def failure(rpc: str, error: grpc.RpcError) -> Exception:
    """Return the error of a failed call. A code that no class maps to is a bug of the driver or the backend."""
    code, text = error.code(), error.details() or ""
    if code in KINDS:
        return KINDS[code](text)
    return CheckFailed(
        f"{rpc} answered {code.name} ({text}): a backend may raise only the errors of csi_multi.contract"
    )


def capability(item: Capability) -> pb.VolumeCapability:
    message = pb.VolumeCapability(access_mode=pb.VolumeCapability.AccessMode(mode=item.mode.name))
    if item.mount is None:
        message.block.SetInParent()
    else:
        message.mount.SetInParent()
        message.mount.fs_type, message.mount.volume_mount_group = item.mount.fs_type, item.mount.group
        message.mount.mount_flags.extend(item.mount.flags)
    return message


def size_range(item: SizeRange) -> pb.CapacityRange:
    return pb.CapacityRange(required_bytes=item.required, limit_bytes=item.limit)


def extents(answers: Iterable[Any]) -> list[Extent]:
    """Return the extents of a stream of block metadata."""
    return [
        Extent(offset=block.byte_offset, length=block.size_bytes)
        for answer in answers
        for block in answer.block_metadata
    ]


def health(message: pb.VolumeHealth) -> tuple[HealthEntry, ...]:
    return tuple(
        HealthEntry(status=Health(entry.status), reason=entry.reason, message=entry.message)
        for entry in message.health_statuses
    )


@dataclass(frozen=True)
class Messages:
    """The conversions that depend on the driver's name or the instance. Handles are ids without the instance."""

    driver: str
    instance: str

    def id_of(self, handle: str) -> str:
        return ids.join(self.instance, handle)

    def handle(self, kind: str, text: str) -> str:
        """Raises CheckFailed for an id that is not of the instance."""
        owner, _, handle = text.partition("/")
        if owner != self.instance or not handle:
            raise CheckFailed(f"{kind} id {text!r} does not have the form {self.instance}/<handle>")
        return handle

    def source(self, item: Source) -> pb.VolumeContentSource:
        message = pb.VolumeContentSource()
        if item.kind is SourceKind.SNAPSHOT:
            message.snapshot.snapshot_id = self.id_of(item.handle)
        else:
            message.volume.volume_id = self.id_of(item.handle)
        return message

    def requirement(self, item: TopologyRequirement) -> pb.TopologyRequirement:
        return pb.TopologyRequirement(
            requisite=[self.topology(segments) for segments in item.requisite],
            preferred=[self.topology(segments) for segments in item.preferred],
        )

    def topology(self, segments: Strings) -> pb.Topology:
        return pb.Topology(segments=topology.add_prefix(self.driver, segments))

    def segments(self, message: pb.Topology) -> dict[str, str]:
        """Return segments by their names: without the driver's prefix, or what a well-known key stands for.

        Raises CheckFailed for another key.
        """
        prefix, known = f"{self.driver}/", topology.WELL_KNOWN_KEYS
        if foreign := [key for key in message.segments if not key.startswith(prefix) and key not in known]:
            raise CheckFailed(f"topology key {foreign[0]!r} does not start with {prefix!r}")
        return {known.get(key) or key.removeprefix(prefix): value for key, value in message.segments.items()}

    def volume(self, message: pb.Volume, published: Iterable[str] = ()) -> Volume:
        return Volume(
            handle=self.handle("volume", message.volume_id),
            size=message.capacity_bytes,
            stamp=self._stamp(self._origin(message), message.volume_context),
            topology=tuple(self.segments(one) for one in message.accessible_topology),
            published_nodes=tuple(published),
        )

    def snapshot(self, message: pb.Snapshot) -> Snapshot:
        group = message.group_snapshot_id
        return Snapshot(
            handle=self.handle("snapshot", message.snapshot_id),
            source=self.handle("volume", message.source_volume_id),
            size=message.size_bytes,
            created=message.creation_time.ToDatetime(tzinfo=UTC),
            stamp=self._stamp(),
            ready=message.ready_to_use,
            group=self.handle("group snapshot", group) if group else "",
        )

    def group(self, message: pb.VolumeGroupSnapshot) -> GroupSnapshot:
        return GroupSnapshot(
            handle=self.handle("group snapshot", message.group_snapshot_id),
            snapshots=tuple(self.snapshot(one) for one in message.snapshots),
            created=message.creation_time.ToDatetime(tzinfo=UTC),
            stamp=self._stamp(),
        )

    def _origin(self, message: pb.Volume) -> Source | None:
        if not message.HasField("content_source"):
            return None
        if message.content_source.WhichOneof("type") == "snapshot":
            handle = self.handle("snapshot", message.content_source.snapshot.snapshot_id)
            return Source(kind=SourceKind.SNAPSHOT, handle=handle)
        return Source(kind=SourceKind.VOLUME, handle=self.handle("volume", message.content_source.volume.volume_id))

    def _stamp(self, source: Source | None = None, context: Mapping[str, str] | None = None) -> Stamp:
        """Return a stamp with what CSI shows of it."""
        return Stamp(driver=self.driver, cluster="", name="", digest="", source=source, context=dict(context or {}))
