"""Health: problems of a volume and of the volume group, as LVM reports them."""

from __future__ import annotations

from csi_multi.contract import (
    Health,
    HealthEntry,
    Page,
    PageRequest,
    StorageError,
    StorageHealth,
    StorageHealthEntry,
    VolumeHealth,
)

from . import labels
from .capacity import METADATA
from .config import Config
from .operation import InstanceParts
from .report import LogicalVolume, Report

FULL = 100.0
POOL_FAILURES = ("failed", "out_of_data", "metadata_read_only")  # lv_health_status of a thin pool


class HealthReporter:
    """The health of an instance's volumes and of its group, by a new report each time."""

    def __init__(self, instance: InstanceParts) -> None:
        self._config = instance.config
        self._client = instance.client
        self._owned_volumes = instance.volumes

    def volume(self, handle: str) -> tuple[HealthEntry, ...]:
        """Return what is wrong with a volume. Raises NotFound, FailedPrecondition, Unavailable."""
        leaf = self._owned_volumes.leaf(handle)
        report = self._client.report()
        found = self._owned_volumes.require(leaf, report.volumes.get(self._owned_volumes.name(leaf)))
        return volume_health(report, found)

    def list_page(self, page: PageRequest) -> Page[VolumeHealth]:
        """Return one page of the volumes that have a problem."""
        report = self._client.report()

        def convert(found: LogicalVolume) -> VolumeHealth | None:
            entries = volume_health(report, found)
            return VolumeHealth(handle=self._owned_volumes.handle(found), entries=entries) if entries else None

        return self._owned_volumes.page(report, page, convert)

    def storage(self) -> tuple[StorageHealthEntry, ...]:
        """Return what is wrong with the group."""
        try:
            return group_health(self._client.report(), self._config, self._owned_volumes.owner)
        except StorageError as error:
            unreachable = StorageHealth.STORAGE_UNREACHABLE
            return (StorageHealthEntry(status=unreachable, reason="GroupUnreachable", message=str(error)),)


def volume_health(report: Report, found: LogicalVolume) -> tuple[HealthEntry, ...]:
    """Return what is wrong with a volume."""
    entries = [*_disk_entries(found), *_pool_entries(report, found)]
    if found.suspended:
        message = f"{found.name} is suspended, and its users wait; resume it with lvchange --refresh"
        entries.append(HealthEntry(status=Health.INACCESSIBLE, reason="Suspended", message=message))
    return tuple(entries)


def _disk_entries(found: LogicalVolume) -> list[HealthEntry]:
    raid = "raid" in found.layout
    if "partial" in found.health:
        message = f"disks of {found.name} are missing; bring them back, or see Recovery in docs/lvm.md"
        if raid:
            return [HealthEntry(status=Health.DEGRADED, reason="RaidDegraded", message=message)]
        return [HealthEntry(status=Health.INACCESSIBLE, reason="DisksMissing", message=message)]
    if raid and found.health:
        message = (
            f"LVM reports {found.health} for {found.name}; repair it with lvchange --refresh or lvconvert --repair"
        )
        return [HealthEntry(status=Health.DEGRADED, reason="RaidDegraded", message=message)]
    return []


def _pool_entries(report: Report, found: LogicalVolume) -> list[HealthEntry]:
    pool = report.volumes.get(found.pool)
    if pool is None:
        return []
    if pool.health in POOL_FAILURES or (pool.data_percent or 0) >= FULL or (pool.metadata_percent or 0) >= FULL:
        state = pool.health.replace("_", " ") or "full"
        message = f"thin pool {pool.name} is {state}: writes wait or fail; extend it with lvextend"
        return [HealthEntry(status=Health.INACCESSIBLE, reason="PoolFull", message=message)]
    return []


def group_health(report: Report, config: Config, owner: str) -> tuple[StorageHealthEntry, ...]:
    """Return what is wrong with the group."""
    group = report.group
    problems = []
    if group.missing:
        message = f"{group.missing} physical volumes of {group.name} are missing; see Recovery in docs/lvm.md"
        problems.append(("DisksMissing", message))
    if group.metadata_free < METADATA:
        message = f"{group.name} has {group.metadata_free} bytes of metadata left; delete volumes or snapshots"
        problems.append(("MetadataAlmostFull", message))
    problems += _fullness(report, config)
    overflowed = [
        one.name for one in report.volumes.values() if owner in one.tags and (one.invalid or labels.INVALID in one.tags)
    ]
    if overflowed:
        message = f"snapshots overflowed and lost their data: {', '.join(sorted(overflowed)[:5])}; delete them"
        problems.append(("SnapshotOverflowed", message))
    return tuple(
        StorageHealthEntry(status=StorageHealth.STORAGE_DEGRADED, reason=reason, message=message)
        for reason, message in problems
    )


def _fullness(report: Report, config: Config) -> list[tuple[str, str]]:
    if not config.thin_pool:
        return []
    pool = report.volumes.get(config.thin_pool)
    if pool is None or not pool.thin_pool:
        return [("PoolMissing", f"{config.volume_group} has no thin pool {config.thin_pool}; create it with lvcreate")]
    percent = max(pool.data_percent or 0, pool.metadata_percent or 0)
    problems = []
    if percent >= config.pool_full_percent:
        message = (
            f"thin pool {pool.name} is {percent:.1f} % full, and nothing is created in it; extend it with lvextend"
        )
        problems.append(("PoolAlmostFull", message))
    if not pool.zeroing:
        message = f"thin pool {pool.name} shows old data; enable zeroing with lvchange --zero y"
        problems.append(("PoolNotZeroing", message))
    return problems
