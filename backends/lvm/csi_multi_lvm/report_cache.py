"""The last report of the volume group, so that a creation costs one lvm command and not a report before it.

The cached report may be up to 40 seconds old. It serves to find the source of a copy (if that was deleted, lvm
refuses, and the group is read again), and to know the sizes of all volumes in a pool (the driver's own creations are
added) and how full it is. A request is only refused after a fresh report. The regular check of the instance
reads a fresh one, too, so the cached one is rarely too old.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from .client import Client
from .report import LogicalVolume, Report

REPORT_TTL = 40.0  # seconds: a little more than the time between two regular checks


class ReportCache:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._expires = 0.0
        self._changes = 0

    def get(self) -> Report:
        """Return the cached report, or a new one if that is too old. Raises Unavailable."""
        with self._lock:
            cached, changes = self._report, self._changes
            if cached is not None and time.monotonic() < self._expires:
                return cached
        report, expires = self._client.report(), time.monotonic() + REPORT_TTL
        with self._lock:
            if changes == self._changes:  # otherwise the report may be older than the driver's own change
                self._report, self._expires = report, expires
        return report

    def fresh(self) -> Report:
        """Return a new report. Raises Unavailable."""
        self.clear()
        return self.get()

    def add(self, volume: LogicalVolume, extents: int) -> None:
        """Add a volume that the driver created, which took so many extents of the group."""
        with self._lock:
            self._changes += 1
            if cached := self._report:
                group = replace(cached.group, free=cached.group.free - extents)
                self._report = replace(cached, group=group, volumes={**cached.volumes, volume.name: volume})

    def remove(self, name: str) -> None:
        """Remove a volume that the driver deleted. The space it frees counts from the next report on."""
        with self._lock:
            self._changes += 1
            if cached := self._report:
                others = {other: volume for other, volume in cached.volumes.items() if other != name}
                self._report = replace(cached, volumes=others)

    def clear(self) -> None:
        """Read a new report next time: something was changed, or differs from the cached report."""
        with self._lock:
            self._changes += 1
            self._report = None
