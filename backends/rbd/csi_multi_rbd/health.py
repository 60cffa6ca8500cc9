"""What is wrong with the cluster, as its monitors see it: that is what is wrong with each of its volumes."""

from __future__ import annotations

import threading
import time

from csi_multi.contract import (
    FailedPrecondition,
    Health,
    HealthEntry,
    PermissionDenied,
    StorageError,
    StorageHealth,
    StorageHealthEntry,
)

from .ceph import Ceph
from .config import Config
from .rows import Status
from .space import Space

FRESH = 10.0  # seconds: so that all volumes of a listing are judged by one report

# Ceph's own health checks (docs.ceph.com, Health checks), by what they mean for who uses a volume.
MEANING = {
    "PG_AVAILABILITY": (Health.INACCESSIBLE, "DataUnavailable"),
    "OSD_FULL": (Health.INACCESSIBLE, "DisksFull"),
    "SLOW_OPS": (Health.DEGRADED, "SlowOperations"),
    "OSD_DOWN": (Health.DEGRADED, "DisksDown"),
    "PG_DEGRADED": (Health.DEGRADED, "CopiesMissing"),
    "OSD_NEARFULL": (Health.DEGRADED, "DisksNearlyFull"),
    "OBJECT_UNFOUND": (Health.DATA_LOSS, "ObjectsUnfound"),
    "PG_DAMAGED": (Health.DATA_LOSS, "DataDamaged"),
}


class ClusterHealth:
    def __init__(self, config: Config, ceph: Ceph, space: Space) -> None:
        self._config = config
        self._ceph = ceph
        self._space = space
        self._guard = threading.Lock()
        self._kept: tuple[float, tuple[HealthEntry, ...]] | None = None

    def entries(self) -> tuple[HealthEntry, ...]:
        """Return what ails every volume. Raises Unavailable."""
        with self._guard:
            if self._kept and time.monotonic() - self._kept[0] < FRESH:
                return self._kept[1]
        found = [
            HealthEntry(status=MEANING[name][0], reason=MEANING[name][1], message=f"the cluster says: {summary}")
            for name, summary in sorted(self.status().checks.items())
            if name in MEANING
        ]
        pool = self._config.data_pool or self._config.pool
        if not self._space.report(pool).available:
            text = f"pool {pool} has no room left: writes will fail"
            found.append(HealthEntry(status=Health.DEGRADED, reason="PoolFull", message=text))
        with self._guard:
            self._kept = (time.monotonic(), tuple(found))
        return tuple(found)

    def status(self) -> Status:
        """Ask the monitors. Raises Unavailable; FailedPrecondition when they are another cluster's."""
        status = self._ceph.status()
        if status.fsid != self._config.fsid:
            raise FailedPrecondition(
                f"the monitors {', '.join(self._config.monitors)} are those of cluster {status.fsid}, configured is "
                f"{self._config.fsid}: mend `monitors` or `fsid`"
            )
        return status

    def storage(self) -> tuple[StorageHealthEntry, ...]:
        """Return how this node sees the cluster."""
        try:
            status = self.status()
        except PermissionDenied:
            raise
        except StorageError as error:
            return (
                StorageHealthEntry(
                    status=StorageHealth.STORAGE_UNREACHABLE, reason="ClusterUnreachable", message=str(error)
                ),
            )
        if status.health != "HEALTH_ERR":
            return ()
        text = "; ".join(f"{name}: {summary}" for name, summary in sorted(status.checks.items()))
        return (StorageHealthEntry(status=StorageHealth.STORAGE_DEGRADED, reason="ClusterError", message=text),)
