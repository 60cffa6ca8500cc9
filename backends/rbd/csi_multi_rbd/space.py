"""Room in the pool: what a volume may be promised, and how large a volume is made."""

from __future__ import annotations

import threading
import time

from csi_multi.contract import CapacityReport, OutOfRange, ResourceExhausted, SizeRange

from .ceph import Ceph
from .config import MIB, Config

FRESH = 60.0  # seconds for which a report is believed
LARGE = 2**40  # bytes of a volume that is admitted before there was a report
NEVER = (-FRESH, 0)  # a report that nobody believes


class Space:
    """What the cluster said of its pools. Threads may share it."""

    def __init__(self, config: Config, ceph: Ceph) -> None:
        self._config = config
        self._ceph = ceph
        self._guard = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}  # by pool: time.monotonic() of the report, and bytes

    def report(self, pool: str) -> CapacityReport:
        """Return what could be made now, by the cluster's own numbers: replicas and quotas are in them."""
        available = self._room(pool)
        if self._config.max_size:
            return CapacityReport(
                available=available,
                maximum=min(available, self._config.max_size),
                minimum=self._config.min_size,
            )
        return CapacityReport(available=available, minimum=min(self._config.min_size, available))

    def admit(self, size: int, pool: str) -> None:
        """Raise ResourceExhausted for a volume that the pool has no room for.

        Goes by the last report, which is never old while the instance is checked, so that making a volume takes
        no further command; only a refusal needs a fresh one.
        """
        with self._guard:
            at, left = self._seen.get(pool, (0.0, LARGE))
        if size <= left and (not at or time.monotonic() - at < FRESH):
            return
        if size > (left := self._room(pool)):
            raise ResourceExhausted(
                f"pool {pool} can be promised {left} bytes (its room times `overprovision`), asked for are {size}; "
                "add disks, raise the quota, or raise `overprovision`"
            )

    def doubt(self) -> None:
        """Believe no report any more: a command took too long, as all that write do when a pool is full."""
        with self._guard:
            self._seen = dict.fromkeys({*self._seen, self._config.pool}, NEVER)

    def _room(self, pool: str) -> int:
        room = self._ceph.room(pool)
        left = room.max_avail
        if room.quota_bytes:
            left = min(left, max(room.quota_bytes - room.stored, 0))
        promised = int(left * self._config.overprovision) // MIB * MIB
        with self._guard:
            self._seen[pool] = (time.monotonic(), promised)
        return promised


def sized(wanted: SizeRange, config: Config, *, least: int = 0) -> int:
    """Return the size of a volume, whole MiB. `least` is its source's. Raises OutOfRange."""
    if wanted.limit and least > wanted.limit:
        raise OutOfRange(f"there are {least} bytes, above limit_bytes ({wanted.limit}), and volumes never shrink")
    if config.max_size and max(least, wanted.required) > config.max_size:
        raise OutOfRange(f"{max(least, wanted.required)} bytes are above the instance's max_size, {config.max_size}")
    return wanted.choose(
        granularity=MIB,
        minimum=max(config.min_size, least),
        maximum=config.max_size,
        default=least or config.default_size,
    )
