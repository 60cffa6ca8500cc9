"""Conversion between protobuf and the model: the only place that adds and removes the instance of an id and
the driver's prefix of topology keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.errors import FailedPrecondition, InvalidArgument
from ..contract.model import (
    AccessMode,
    Capability,
    GroupSnapshot,
    HealthEntry,
    Mount,
    Segments,
    SizeRange,
    Snapshot,
    Source,
    SourceKind,
    StorageHealthEntry,
    TopologyRequirement,
    Volume,
)
from ..core import topology
from ..core.mixed_groups import group_of
from ..loading.instance import Instance
from ..node import encryption_options
from ..node.requests import Usage


def capability(message: pb.VolumeCapability) -> Capability:
    """Raises InvalidArgument for an access mode that this driver does not know."""
    try:
        mode = AccessMode(message.access_mode.mode)
    except ValueError:
        raise InvalidArgument(f"access_mode: the number {message.access_mode.mode} is unknown to this driver") from None
    if message.WhichOneof("access_type") == "block":
        return Capability(mode=mode)
    mount = message.mount
    flags = tuple(mount.mount_flags)
    return Capability(mode=mode, mount=Mount(fs_type=mount.fs_type, flags=flags, group=mount.volume_mount_group))


def capabilities(messages: Iterable[pb.VolumeCapability]) -> tuple[Capability, ...]:
    return tuple(capability(message) for message in messages)


def size_range(message: pb.CapacityRange) -> SizeRange:
    return SizeRange(required=message.required_bytes, limit=message.limit_bytes)


def source(message: pb.VolumeContentSource, instance: str) -> Source:
    """Raises NotFound for an id of another shape, InvalidArgument for one of another instance."""
    if message.WhichOneof("type") == "snapshot":
        kind, text = SourceKind.SNAPSHOT, message.snapshot.snapshot_id
    else:
        kind, text = SourceKind.VOLUME, message.volume.volume_id
    owner, handle = ids.split(kind.value, text)
    if owner != instance:
        raise InvalidArgument(
            f"volume_content_source: {kind.value} {text!r} belongs to backend {owner!r}; "
            f"a volume of backend {instance!r} cannot be a copy of it"
        )
    return Source(kind=kind, handle=handle)


def requirement(driver: str, message: pb.TopologyRequirement) -> TopologyRequirement:
    return TopologyRequirement(
        requisite=tuple(topology.strip_prefix(driver, item.segments) for item in message.requisite),
        preferred=tuple(topology.strip_prefix(driver, item.segments) for item in message.preferred),
    )


def volume(driver: str, instance: Instance, item: Volume) -> pb.Volume:
    message = pb.Volume(
        capacity_bytes=item.size - encryption_options.overhead(item.stamp.context),
        volume_id=ids.join(instance.name, item.handle),
        volume_context=item.stamp.context,
        accessible_topology=_topologies(driver, instance, topology.of_volume(instance.backend, item)),
    )
    if item.stamp.source:
        origin = ids.join(instance.name, item.stamp.source.handle)
        if item.stamp.source.kind is SourceKind.SNAPSHOT:
            message.content_source.snapshot.snapshot_id = origin
        else:
            message.content_source.volume.volume_id = origin
    return message


def snapshot(instance: Instance, item: Snapshot) -> pb.Snapshot:
    created = Timestamp()
    created.FromDatetime(item.created)
    return pb.Snapshot(
        size_bytes=item.size - encryption_options.overhead(item.stamp.context),
        snapshot_id=ids.join(instance.name, item.handle),
        source_volume_id=ids.join(instance.name, item.source),
        creation_time=created,
        ready_to_use=item.ready,
        group_snapshot_id=ids.join(instance.name, item.group) if item.group else group_of(item.stamp.context),
    )


def group(instance: Instance, item: GroupSnapshot) -> pb.VolumeGroupSnapshot:
    created = Timestamp()
    created.FromDatetime(item.created)
    return pb.VolumeGroupSnapshot(
        group_snapshot_id=ids.join(instance.name, item.handle),
        snapshots=[snapshot(instance, member) for member in item.snapshots],
        creation_time=created,
        ready_to_use=item.ready,
    )


def mixed_group(group_id: str, members: Sequence[tuple[Instance, Snapshot]]) -> pb.VolumeGroupSnapshot:
    """A group that the driver cut itself, as of its first member."""
    created = Timestamp()
    created.FromDatetime(min(one.created for _, one in members))
    return pb.VolumeGroupSnapshot(
        group_snapshot_id=group_id,
        snapshots=[snapshot(instance, one) for instance, one in members],
        creation_time=created,
        ready_to_use=all(one.ready for _, one in members),
    )


def health(volume_id: str, entries: Iterable[HealthEntry]) -> pb.VolumeHealth:
    """Return the entries, one per status and reason (csi-spec VolumeHealth)."""
    statuses = [
        pb.VolumeHealth.VolumeHealthEntry(status=status, reason=reason, message=text)
        for status, reason, text in _merged((entry.status.name, entry.reason, entry.message) for entry in entries)
    ]
    return pb.VolumeHealth(volume_id=volume_id, health_statuses=statuses)


def storage_health(found: Iterable[tuple[str, StorageHealthEntry]]) -> list[Any]:
    """Return the entries of all instances, given with their name, one per status and reason (csi-spec)."""
    kind = pb.NodeGetStorageHealthResponse.StorageBackendHealth
    rows = list(found)
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, entry in rows:
        names.setdefault((entry.status.name, entry.reason), {})[name] = None

    def message(status: str, reason: str, text: str) -> str:
        """The names come first: the text may be cut to the limit of CSI."""
        affected = list(names[status, reason])
        return f"backend{'s' if affected[1:] else ''} {', '.join(affected)}: {text}"

    merged = _merged((entry.status.name, entry.reason, entry.message) for _, entry in rows)
    return [
        kind(status=status, reason=reason, message=message(status, reason, text)) for status, reason, text in merged
    ]


def _merged(rows: Iterable[tuple[str, str, str]]) -> Iterable[tuple[Any, str, str]]:
    """Return the (status, reason, message) in their order, with one row per status and reason, and all messages."""
    messages: dict[tuple[str, str], dict[str, None]] = {}
    for status, reason, text in rows:
        messages.setdefault((status, reason), {})[text] = None
    return [(status, reason, "; ".join(texts)) for (status, reason), texts in messages.items()]


def usage(item: Usage) -> pb.VolumeUsage:
    unit = pb.VolumeUsage.BYTES if item.unit == "bytes" else pb.VolumeUsage.INODES
    return pb.VolumeUsage(unit=unit, total=item.total, used=item.used or 0, available=item.available or 0)


def node_topology(driver: str, places: Mapping[str, Segments], well_known: Collection[str] = ()) -> dict[str, str]:
    """Return the segments of a node over all its instances, given by name, with the driver's prefix.

    Those of the instances in `well_known` are reported under their well-known keys, too.

    Raises FailedPrecondition when two instances have different values for one key: the volumes of one of them
    could never be reached.
    """
    segments: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name, place in places.items():
        for key, value in place.items():
            if segments.setdefault(key, value) != value:
                raise FailedPrecondition(
                    f"backends {owners[key]!r} and {name!r} report different segments {key!r} for this node: "
                    f"{segments[key]!r} and {value!r}; a node has one value per key, so give them separate drivers"
                )
            owners.setdefault(key, name)
    found = topology.add_prefix(driver, segments)
    for name in well_known:
        found |= topology.add_well_known(driver, places[name])
    return found


def _topologies(driver: str, instance: Instance, places: Iterable[Segments]) -> list[pb.Topology]:
    return [pb.Topology(segments=topology.volume_keys(driver, instance.backend, segments)) for segments in places]
