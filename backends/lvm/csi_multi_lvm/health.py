"""What can be wrong with a volume, or with the group as a whole, as LVM reports it."""

from __future__ import annotations

from csi_multi.contract import Health, HealthEntry, StorageHealth, StorageHealthEntry

from . import tags
from .config import Config
from .report import LogicalVolume, Report
from .space import METADATA

FULL = 100.0
ILL_POOL = ("failed", "out_of_data", "metadata_read_only")  # lv_health_status of a thin pool


def of_volume(report: Report, found: LogicalVolume) -> tuple[HealthEntry, ...]:
    """Return what is wrong with a volume."""
    entries = [*_of_disks(found), *_of_pool(report, found)]
    if found.suspended:
        message = f"{found.name} is suspended, so that all who use it wait; lvchange --refresh resumes it"
        entries.append(HealthEntry(status=Health.INACCESSIBLE, reason="Suspended", message=message))
    return tuple(entries)


def _of_disks(found: LogicalVolume) -> list[HealthEntry]:
    raid = "raid" in found.layout
    if "partial" in found.health:
        message = f"disks below {found.name} are missing; bring them back, or see the recovery recipes"
        if raid:
            return [HealthEntry(status=Health.DEGRADED, reason="RaidDegraded", message=message)]
        return [HealthEntry(status=Health.INACCESSIBLE, reason="DisksMissing", message=message)]
    if raid and found.health:
        message = f"{found.name}: {found.health}; repair it with lvchange --refresh or lvconvert --repair"
        return [HealthEntry(status=Health.DEGRADED, reason="RaidDegraded", message=message)]
    return []


def _of_pool(report: Report, found: LogicalVolume) -> list[HealthEntry]:
    pool = report.volumes.get(found.pool)
    if pool is None:
        return []
    if pool.health in ILL_POOL or (pool.data_percent or 0) >= FULL or (pool.metadata_percent or 0) >= FULL:
        what = pool.health.replace("_", " ") or "full"
        message = f"thin pool {pool.name} is {what}: writes wait or fail; extend it with lvextend"
        return [HealthEntry(status=Health.INACCESSIBLE, reason="PoolFull", message=message)]
    return []


def of_group(report: Report, config: Config, owner: str) -> tuple[StorageHealthEntry, ...]:
    """Return what is wrong with the group."""
    group = report.group
    said = []
    if group.missing:
        said.append(("DisksMissing", f"{group.missing} physical volumes of {group.name} are missing"))
    if group.metadata_free < METADATA:
        said.append(("MetadataAlmostFull", f"{group.name} has {group.metadata_free} bytes of metadata left"))
    said += _of_fullness(report, config)
    lost = [
        one.name for one in report.volumes.values() if owner in one.tags and (one.invalid or tags.INVALID in one.tags)
    ]
    if lost:
        said.append(("SnapshotOverflowed", f"snapshots have lost their data: {', '.join(sorted(lost)[:5])}"))
    return tuple(
        StorageHealthEntry(status=StorageHealth.STORAGE_DEGRADED, reason=reason, message=message)
        for reason, message in said
    )


def _of_fullness(report: Report, config: Config) -> list[tuple[str, str]]:
    if not config.thin_pool:
        return []
    pool = report.volumes.get(config.thin_pool)
    if pool is None or not pool.thin_pool:
        return [("PoolMissing", f"{config.volume_group} has no thin pool {config.thin_pool}")]
    filled = max(pool.data_percent or 0, pool.metadata_percent or 0)
    said = []
    if filled >= config.pool_full_percent:
        said.append(("PoolAlmostFull", f"thin pool {pool.name} is {filled:.1f} % full; nothing new is made in it"))
    if not pool.zeroing:
        said.append(("PoolNotZeroing", f"thin pool {pool.name} shows old data; run lvchange --zero y on it"))
    return said


def unreachable(error: Exception) -> StorageHealthEntry:
    return StorageHealthEntry(status=StorageHealth.STORAGE_UNREACHABLE, reason="GroupUnreachable", message=str(error))
