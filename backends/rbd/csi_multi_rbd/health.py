"""Health: problems of the cluster, which concern all of its volumes, and of a device on this node."""

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

from .capacity import CapacityAccounting
from .client import Client, ClusterClient
from .config import Config
from .errors import ImageNotFound
from .resources import ClusterStatus, MappedImage
from .watchers import watch_lost

REPORT_TTL = 10.0  # seconds: one report for all volumes of a listing
# Seconds between two regular checks of a cluster that answers. That it still does is shown by the listing of its trash
# every ten minutes (trash.py), for an eighth of what one `ceph` costs: 0.25 CPU-s. What only `ceph` shows, that the
# monitors are those of another cluster now, does not happen by itself.
CHECK_SECONDS = 3600.0

# Ceph's health checks (docs.ceph.com, Health checks), by what they mean for a volume.
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


class HealthReporter:
    """Reports the health of the cluster."""

    def __init__(self, config: Config, cluster: ClusterClient, capacity: CapacityAccounting) -> None:
        self._config = config
        self._cluster = cluster
        self._capacity = capacity
        self._lock = threading.Lock()
        self._last: tuple[float, tuple[HealthEntry, ...]] | None = None
        self._checked: float | None = None  # time.monotonic() of the last check, None after one that failed

    def check(self) -> None:
        """Look whether the cluster is the configured one and answers, and how full it is.

        Does nothing for CHECK_SECONDS after a look, unless a command had no answer since. Raises as `report` does.
        """
        silent = self._cluster.is_silent
        if self._checked is not None and time.monotonic() - self._checked < CHECK_SECONDS and not silent:
            return
        self._checked = None
        self.report()
        self._checked = time.monotonic()

    def report(self) -> ClusterStatus:
        """Return the cluster's status, and note the usage of its pools. Raises as `status` does."""
        status, usages = self._cluster.report()
        self._capacity.note(usages)
        return self._of_this_cluster(status)

    def volume(self) -> tuple[HealthEntry, ...]:
        """Return what is wrong with every volume. Raises Unavailable."""
        with self._lock:
            if self._last and time.monotonic() - self._last[0] < REPORT_TTL:
                return self._last[1]
        found = [
            HealthEntry(status=MEANING[name][0], reason=MEANING[name][1], message=f"Ceph reports {name}: {summary}")
            for name, summary in sorted(self.report().checks.items())
            if name in MEANING
        ]
        pool = self._config.data_pool or self._config.pool
        if not self._capacity.report(pool).available:
            text = f"pool {pool} has no space left, so writes fail; add disks, delete data, or raise the quota"
            found.append(HealthEntry(status=Health.DEGRADED, reason="PoolFull", message=text))
        with self._lock:
            self._last = (time.monotonic(), tuple(found))
        return tuple(found)

    def status(self) -> ClusterStatus:
        """Return the cluster's status. Raises Unavailable; FailedPrecondition for monitors of another cluster."""
        return self._of_this_cluster(self._cluster.status())

    def _of_this_cluster(self, status: ClusterStatus) -> ClusterStatus:
        if status.fsid != self._config.fsid:
            raise FailedPrecondition(
                f"the monitors {', '.join(self._config.monitors)} belong to cluster {status.fsid}, and the "
                f"configuration names {self._config.fsid}; correct `monitors` or `fsid`"
            )
        return status

    def storage(self) -> tuple[StorageHealthEntry, ...]:
        """Return what is wrong with the cluster as this node sees it."""
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


def device_health(client: Client, image: str, mapping: MappedImage, *, keyless: bool) -> HealthEntry | None:
    """Return what is wrong with an image's device on this node; None: nothing.

    `keyless`: this node has no key, so it cannot query the cluster.
    """
    device = f"/dev/{mapping.disk}"
    if not mapping.served:
        restart = "restart the driver on this node within 300 s, which starts a new rbd-nbd, or "
        return _inaccessible(
            "ProcessGone",
            f"the rbd-nbd process of {device} has died, so its reads and writes wait: {'' if keyless else restart}"
            "unpublish and unstage the volume",
        )
    if keyless:
        return None
    try:
        watchers = client.watchers(image)
    except ImageNotFound:
        return HealthEntry(
            status=Health.DATA_LOSS,
            reason="ImageMissing",
            message=f"image {client.spec(image)} of {device} does not exist any more; unpublish and unstage the volume",
        )
    except StorageError as error:
        return _inaccessible("ClusterUnreachable", f"{device}: {error}")
    if watch_lost(watchers, mapping):
        return _inaccessible(
            "WatchLost",
            f"the cluster no longer knows this node's mapping ({mapping.client or 'rbd-nbd'}) of {client.spec(image)} "
            f"as {device}: it was put on the blocklist ('ceph osd blocklist ls') or cut off for long, so writes may "
            "fail; unpublish and unstage the volume, and stage it again",
        )
    return None


def _inaccessible(reason: str, message: str) -> HealthEntry:
    return HealthEntry(status=Health.INACCESSIBLE, reason=reason, message=message)
