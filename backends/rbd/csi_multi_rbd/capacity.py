"""Capacity: how much can still be created in a pool, and the size of a new volume."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping

from csi_multi.contract import CapacityReport, OutOfRange, ResourceExhausted, SizeRange

from .client import ClusterClient
from .config import MIB, Config
from .errors import ObjectNotFound
from .resources import PoolUsage

REPORT_TTL = 300.0  # seconds for which a report is given as the capacity
ADMISSION_TTL = 660.0  # seconds for which volumes are accepted by it: a little more than between two regular checks
REFUSAL_TTL = 1.0  # seconds for which they are refused by it
LARGE = 2**40  # bytes: a volume up to this size is accepted before the first report
STALE = (-math.inf, 0)  # stands for a report that must not be used


class CapacityAccounting:
    """The cluster's last reports on its pools. Thread-safe."""

    def __init__(self, config: Config, cluster: ClusterClient) -> None:
        self._config = config
        self._cluster = cluster
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._reports: dict[str, tuple[float, int]] = {}  # by pool: time.monotonic() of the report, and bytes

    def report(self, pool: str) -> CapacityReport:
        """Return what can be created now, by the cluster's own numbers, which include replicas and quotas.

        The last report is used while it is young.
        """
        available = self._available(pool, REPORT_TTL)
        if self._config.max_size:
            return CapacityReport(
                available=available,
                maximum=min(available, self._config.max_size),
                minimum=self._config.min_size,
            )
        return CapacityReport(available=available, minimum=min(self._config.min_size, available))

    def report_all(self, pools: Iterable[str]) -> CapacityReport:
        """Return what can be created now in several pools together; none: nothing."""
        reports = [self.report(pool) for pool in pools]
        if len(reports) == 1:
            return reports[0]
        largest = max(((one.available if one.maximum is None else one.maximum) for one in reports), default=None)
        return CapacityReport(
            available=sum(one.available for one in reports),
            maximum=largest,
            minimum=min((one.minimum or 0 for one in reports), default=None),
        )

    def admit(self, size: int, pool: str) -> None:
        """Raise ResourceExhausted for a volume that does not fit into the pool.

        Uses the last report, which the regular checks keep fresh, so that creating a volume takes no further command;
        only a refusal needs a new one.
        """
        with self._lock:
            unknown = pool not in self._reports
        if (unknown and size <= LARGE) or size <= self._available(pool, ADMISSION_TTL):
            return
        if size > (available := self._available(pool, REFUSAL_TTL)):
            raise ResourceExhausted(
                f"pool {pool}: {available} bytes left (free space times `overprovision`), {size} requested; add "
                "disks, raise the quota, or raise `overprovision`"
            )

    def note(self, usages: Mapping[str, PoolUsage]) -> None:
        """Use a report on all pools that was read now."""
        now = time.monotonic()
        with self._lock:
            self._reports.update({pool: (now, self._creatable(usage)) for pool, usage in usages.items()})

    def invalidate(self, pool: str) -> None:
        """Use no earlier report any more: a command took too long, as every write does when its pool is full."""
        with self._lock:
            self._reports = dict.fromkeys({*self._reports, pool}, STALE)

    def _available(self, pool: str, ttl: float) -> int:
        """Return the bytes by a report that is younger than `ttl`, which one thread asks for and all others wait for.

        Raises ObjectNotFound when the cluster has no such pool.
        """
        since = time.monotonic() - ttl
        if (available := self._reported(pool, since)) is not None:
            return available
        with self._asking:
            if (available := self._reported(pool, since)) is not None:
                return available
            self.note(self._cluster.pool_usages())
            if (available := self._reported(pool, since)) is None:
                raise ObjectNotFound(f"the cluster has no pool {pool!r}; create it, or name another one")
            return available

    def _reported(self, pool: str, since: float) -> int | None:
        """Return the bytes by the last report; None for one from before `since`."""
        with self._lock:
            at, available = self._reports.get(pool, STALE)
        return available if at >= since else None

    def _creatable(self, usage: PoolUsage) -> int:
        free = usage.max_avail
        if usage.quota_bytes:
            free = min(free, max(usage.quota_bytes - usage.stored, 0))
        return int(free * self._config.overprovision) // MIB * MIB


def choose_size(wanted: SizeRange, config: Config, *, least: int = 0) -> int:
    """Return the size of a volume, whole MiB. `least` is the size of its source or its own. Raises OutOfRange."""
    if wanted.limit and least > wanted.limit:
        raise OutOfRange(
            f"the source or the volume has {least} bytes, more than limit_bytes ({wanted.limit}), and volumes never "
            f"shrink; request at least {least} bytes"
        )
    if config.max_size and max(least, wanted.required) > config.max_size:
        raise OutOfRange(
            f"{max(least, wanted.required)} bytes are more than the instance's max_size of {config.max_size} bytes; "
            "request less, or raise it"
        )
    return wanted.choose(
        granularity=MIB,
        minimum=max(config.min_size, least),
        maximum=config.max_size,
        default=least or config.default_size,
    )
