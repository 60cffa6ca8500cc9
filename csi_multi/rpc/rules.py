"""One row per RPC: required fields, what it locks, what it costs, which capability turns it on.

Lock keys are (family, field). Controller and node have families of their own, because in a real
deployment they are different processes. A family may be held exclusively by one operation, or shared
by many: twenty volumes restored from one snapshot share it, and only its deletion is kept out.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field

LockField = tuple[str, str]  # (family, dotted field of the request)


class RpcCost(enum.Enum):
    """How an RPC uses the thread pool (interceptor.py keeps room for the cheaper ones)."""

    INSTANT = "instant"  # memory only: never refused
    READING = "reading"  # looks at devices or mounts; may hang with them
    WORKING = "working"


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRule:
    required: tuple[str, ...] = ()
    exclusive: tuple[LockField, ...] = ()
    shared: tuple[LockField, ...] = ()
    gate: tuple[str, str] | None = None  # (service, capability) that must be advertised
    cost: RpcCost = RpcCost.WORKING
    everywhere: bool = False  # asks every instance, and has no answer without one of them
    level: int = field(default=logging.INFO)


def _instant(service: str = "") -> RpcRule:
    return RpcRule(cost=RpcCost.INSTANT, level=logging.DEBUG, gate=(service, "") if service else None)


def _reading(service: str, capability: str, *required: str) -> RpcRule:
    return RpcRule(required=required, gate=(service, capability), cost=RpcCost.READING, level=logging.DEBUG)


def _over_all_instances(service: str, capability: str, level: int = logging.DEBUG) -> RpcRule:
    """An instance that hangs is no reason to leave it out: a volume that is not listed counts as gone, a
    node id without an instance's fact is stored for ever, and less capacity is a wrong number. So these
    RPCs fail instead, with its name, and keep one thread waiting there (bulkhead.py)."""
    return RpcRule(gate=(service, capability), cost=RpcCost.READING, everywhere=True, level=level)


SIZE, ATTRIBUTES = "volume's size", "volume's attributes"
VOLUME = (("volume", "volume_id"),)
ON_NODE = (("volume on this node", "volume_id"),)
SNAPSHOT = (("snapshot", "snapshot_id"),)
GROUP = (("group snapshot", "group_snapshot_id"),)


def _source_locks(name: str) -> tuple[LockField, ...]:
    """What is held of a volume that is copied: nobody removes or changes it meanwhile."""
    return (("volume", name), (SIZE, name), (ATTRIBUTES, name))


SOURCES = (
    ("snapshot", "volume_content_source.snapshot.snapshot_id"),
    *_source_locks("volume_content_source.volume.volume_id"),
)

RULES: dict[str, RpcRule] = {
    # Identity
    "GetPluginInfo": _instant(),
    "GetPluginCapabilities": _instant(),
    "Probe": _instant(),
    # Controller
    "CreateVolume": RpcRule(
        required=("name", "volume_capabilities"),
        exclusive=(("new volume", "name"),),
        shared=SOURCES,
        gate=("controller", "CREATE_DELETE_VOLUME"),
    ),
    "DeleteVolume": RpcRule(required=("volume_id",), exclusive=VOLUME, gate=("controller", "CREATE_DELETE_VOLUME")),
    "ControllerPublishVolume": RpcRule(
        required=("volume_id", "node_id", "volume_capability"),
        exclusive=VOLUME,
        gate=("controller", "PUBLISH_UNPUBLISH_VOLUME"),
    ),
    "ControllerUnpublishVolume": RpcRule(
        required=("volume_id",), exclusive=VOLUME, gate=("controller", "PUBLISH_UNPUBLISH_VOLUME")
    ),
    "ValidateVolumeCapabilities": RpcRule(
        required=("volume_id", "volume_capabilities"), gate=("controller", ""), cost=RpcCost.READING
    ),
    "ListVolumes": _over_all_instances("controller", "LIST_VOLUMES"),
    "GetCapacity": _over_all_instances("controller", "GET_CAPACITY"),
    "ControllerGetCapabilities": _instant("controller"),
    "CreateSnapshot": RpcRule(
        required=("name", "source_volume_id"),
        exclusive=(("new snapshot", "name"),),
        shared=_source_locks("source_volume_id"),
        gate=("controller", "CREATE_DELETE_SNAPSHOT"),
    ),
    "DeleteSnapshot": RpcRule(
        required=("snapshot_id",), exclusive=SNAPSHOT, gate=("controller", "CREATE_DELETE_SNAPSHOT")
    ),
    "ListSnapshots": _over_all_instances("controller", "LIST_SNAPSHOTS"),
    "GetSnapshot": _reading("controller", "GET_SNAPSHOT", "snapshot_id"),
    # A claim's size and class may change in one edit: the two calls that follow may meet, and one storage
    # call can then do both.
    "ControllerExpandVolume": RpcRule(
        required=("volume_id", "capacity_range"),
        exclusive=((SIZE, "volume_id"),),
        shared=VOLUME,
        gate=("controller", "EXPAND_VOLUME"),
    ),
    "ControllerGetVolume": _reading("controller", "GET_VOLUME", "volume_id"),
    "ControllerModifyVolume": RpcRule(
        required=("volume_id", "mutable_parameters"),
        exclusive=((ATTRIBUTES, "volume_id"),),
        shared=VOLUME,
        gate=("controller", "MODIFY_VOLUME"),
    ),
    "ControllerListVolumeHealth": _over_all_instances("controller", "LIST_VOLUME_HEALTH"),
    "ControllerGetVolumeHealth": _reading("controller", "GET_VOLUME_HEALTH", "volume_id"),
    # GroupController
    "GroupControllerGetCapabilities": _instant("group"),
    "CreateVolumeGroupSnapshot": RpcRule(
        required=("name", "source_volume_ids"),
        exclusive=(("new group snapshot", "name"),),
        shared=_source_locks("source_volume_ids"),
        gate=("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    ),
    "DeleteVolumeGroupSnapshot": RpcRule(
        required=("group_snapshot_id",),
        exclusive=(*GROUP, ("snapshot", "snapshot_ids")),
        gate=("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    ),
    "GetVolumeGroupSnapshot": _reading("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", "group_snapshot_id"),
    # SnapshotMetadata
    "GetMetadataAllocated": RpcRule(required=("snapshot_id",), shared=SNAPSHOT, gate=("metadata", "")),
    "GetMetadataDelta": RpcRule(
        required=("base_snapshot_id", "target_snapshot_id"),
        shared=(("snapshot", "base_snapshot_id"), ("snapshot", "target_snapshot_id")),
        gate=("metadata", ""),
    ),
    # Node
    "NodeStageVolume": RpcRule(
        required=("volume_id", "staging_target_path", "volume_capability"),
        exclusive=ON_NODE,
        gate=("node", "STAGE_UNSTAGE_VOLUME"),
    ),
    "NodeUnstageVolume": RpcRule(
        required=("volume_id", "staging_target_path"), exclusive=ON_NODE, gate=("node", "STAGE_UNSTAGE_VOLUME")
    ),
    "NodePublishVolume": RpcRule(
        required=("volume_id", "target_path", "volume_capability"), exclusive=ON_NODE, gate=("node", "")
    ),
    "NodeUnpublishVolume": RpcRule(required=("volume_id", "target_path"), exclusive=ON_NODE, gate=("node", "")),
    "NodeGetVolumeStats": _reading("node", "GET_VOLUME_STATS", "volume_id", "volume_path"),
    "NodeExpandVolume": RpcRule(
        required=("volume_id", "volume_path"), exclusive=ON_NODE, gate=("node", "EXPAND_VOLUME")
    ),
    "NodeGetCapabilities": _instant("node"),
    "NodeGetInfo": _over_all_instances("node", "", logging.INFO),
    "NodeGetVolumeHealth": _reading("node", "GET_VOLUME_HEALTH", "volume_id"),
    "NodeGetStorageHealth": _over_all_instances("node", "GET_STORAGE_HEALTH"),
}
