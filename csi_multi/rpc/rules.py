"""One row per RPC: required fields, locks, cost in threads, and the capability that must be advertised.

Lock keys are (family, field). Controller and node have separate families, because in a real
deployment they are different processes. A key is held exclusively by one operation, or shared
by many: twenty restores from one snapshot share it, and only the snapshot's deletion must wait.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field

LockField = tuple[str, str]  # (family, dotted field of the request)


class RpcCost(enum.Enum):
    """How an RPC uses the thread pool; interceptor.py reserves threads for the cheaper kinds."""

    INSTANT = "instant"  # uses memory only, so it is never refused
    READING = "reading"  # reads devices, mounts or the storage, and may hang with them
    WORKING = "working"


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRule:
    required: tuple[str, ...] = ()
    exclusive: tuple[LockField, ...] = ()
    shared: tuple[LockField, ...] = ()
    requires: tuple[str, str] | None = None  # (service, capability) that must be advertised
    cost: RpcCost = RpcCost.WORKING
    all_instances: bool = False  # it calls every instance, and fails when one of them does
    level: int = field(default=logging.INFO)


def _instant(service: str = "") -> RpcRule:
    return RpcRule(cost=RpcCost.INSTANT, level=logging.DEBUG, requires=(service, "") if service else None)


def _reading(service: str, capability: str, *required: str) -> RpcRule:
    return RpcRule(required=required, requires=(service, capability), cost=RpcCost.READING, level=logging.DEBUG)


def _over_all_instances(service: str, capability: str, level: int = logging.DEBUG) -> RpcRule:
    """An instance that hangs may not be left out: a volume that is not listed counts as gone, a node id
    without an instance's fact is stored for ever, and a partial capacity is a wrong number. So these
    RPCs fail instead, with the instance's name, and only one of them waits there (admission.py)."""
    return RpcRule(requires=(service, capability), cost=RpcCost.READING, all_instances=True, level=level)


SIZE, ATTRIBUTES = "volume's size", "volume's attributes"
VOLUME = (("volume", "volume_id"),)
ON_NODE = (("volume on this node", "volume_id"),)
SNAPSHOT = (("snapshot", "snapshot_id"),)
GROUP = (("group snapshot", "group_snapshot_id"),)


def _source_locks(name: str) -> tuple[LockField, ...]:
    """The locks on a volume that is copied: it may not be deleted or changed meanwhile."""
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
        requires=("controller", "CREATE_DELETE_VOLUME"),
    ),
    "DeleteVolume": RpcRule(required=("volume_id",), exclusive=VOLUME, requires=("controller", "CREATE_DELETE_VOLUME")),
    "ControllerPublishVolume": RpcRule(
        required=("volume_id", "node_id", "volume_capability"),
        exclusive=VOLUME,
        requires=("controller", "PUBLISH_UNPUBLISH_VOLUME"),
    ),
    "ControllerUnpublishVolume": RpcRule(
        required=("volume_id",), exclusive=VOLUME, requires=("controller", "PUBLISH_UNPUBLISH_VOLUME")
    ),
    "ValidateVolumeCapabilities": RpcRule(
        required=("volume_id", "volume_capabilities"), requires=("controller", ""), cost=RpcCost.READING
    ),
    "ListVolumes": _over_all_instances("controller", "LIST_VOLUMES"),
    "GetCapacity": _over_all_instances("controller", "GET_CAPACITY"),
    "ControllerGetCapabilities": _instant("controller"),
    "CreateSnapshot": RpcRule(
        required=("name", "source_volume_id"),
        exclusive=(("new snapshot", "name"),),
        shared=_source_locks("source_volume_id"),
        requires=("controller", "CREATE_DELETE_SNAPSHOT"),
    ),
    "DeleteSnapshot": RpcRule(
        required=("snapshot_id",), exclusive=SNAPSHOT, requires=("controller", "CREATE_DELETE_SNAPSHOT")
    ),
    "ListSnapshots": _over_all_instances("controller", "LIST_SNAPSHOTS"),
    "GetSnapshot": _reading("controller", "GET_SNAPSHOT", "snapshot_id"),
    # A claim's size and class may change in one edit: the two RPCs that follow may run at the same time, and
    # a backend can then do both in one storage call.
    "ControllerExpandVolume": RpcRule(
        required=("volume_id", "capacity_range"),
        exclusive=((SIZE, "volume_id"),),
        shared=VOLUME,
        requires=("controller", "EXPAND_VOLUME"),
    ),
    "ControllerGetVolume": _reading("controller", "GET_VOLUME", "volume_id"),
    "ControllerModifyVolume": RpcRule(
        required=("volume_id", "mutable_parameters"),
        exclusive=((ATTRIBUTES, "volume_id"),),
        shared=VOLUME,
        requires=("controller", "MODIFY_VOLUME"),
    ),
    "ControllerListVolumeHealth": _over_all_instances("controller", "LIST_VOLUME_HEALTH"),
    "ControllerGetVolumeHealth": _reading("controller", "GET_VOLUME_HEALTH", "volume_id"),
    # GroupController
    "GroupControllerGetCapabilities": _instant("group"),
    "CreateVolumeGroupSnapshot": RpcRule(
        required=("name", "source_volume_ids"),
        exclusive=(("new group snapshot", "name"),),
        shared=_source_locks("source_volume_ids"),
        requires=("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    ),
    "DeleteVolumeGroupSnapshot": RpcRule(
        required=("group_snapshot_id",),
        exclusive=(*GROUP, ("snapshot", "snapshot_ids")),
        requires=("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    ),
    "GetVolumeGroupSnapshot": _reading("group", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", "group_snapshot_id"),
    # SnapshotMetadata
    "GetMetadataAllocated": RpcRule(required=("snapshot_id",), shared=SNAPSHOT, requires=("metadata", "")),
    "GetMetadataDelta": RpcRule(
        required=("base_snapshot_id", "target_snapshot_id"),
        shared=(("snapshot", "base_snapshot_id"), ("snapshot", "target_snapshot_id")),
        requires=("metadata", ""),
    ),
    # Node
    "NodeStageVolume": RpcRule(
        required=("volume_id", "staging_target_path", "volume_capability"),
        exclusive=ON_NODE,
        requires=("node", "STAGE_UNSTAGE_VOLUME"),
    ),
    "NodeUnstageVolume": RpcRule(
        required=("volume_id", "staging_target_path"), exclusive=ON_NODE, requires=("node", "STAGE_UNSTAGE_VOLUME")
    ),
    "NodePublishVolume": RpcRule(
        required=("volume_id", "target_path", "volume_capability"), exclusive=ON_NODE, requires=("node", "")
    ),
    "NodeUnpublishVolume": RpcRule(required=("volume_id", "target_path"), exclusive=ON_NODE, requires=("node", "")),
    "NodeGetVolumeStats": _reading("node", "GET_VOLUME_STATS", "volume_id", "volume_path"),
    "NodeExpandVolume": RpcRule(
        required=("volume_id", "volume_path"), exclusive=ON_NODE, requires=("node", "EXPAND_VOLUME")
    ),
    "NodeGetCapabilities": _instant("node"),
    "NodeGetInfo": _over_all_instances("node", "", logging.INFO),
    "NodeGetVolumeHealth": _reading("node", "GET_VOLUME_HEALTH", "volume_id"),
    "NodeGetStorageHealth": _over_all_instances("node", "GET_STORAGE_HEALTH"),
}
