"""The group as it was seen last: so that a creation costs one lvm command, and not a report beside it.

What it is used for can be a little old: whether a source is there (else lvm refuses, and the truth is
looked up), how much a pool has promised (our own creations are added), how full it is. Nothing is refused
because of it before a fresh look. The regular check of the instance looks too, so that it is rarely too old.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from .lvm import Lvm
from .report import LogicalVolume, Report

FRESH = 40.0  # seconds: a little more than lies between two regular checks


class Seen:
    def __init__(self, lvm: Lvm) -> None:
        self._lvm = lvm
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._until = 0.0
        self._changes = 0

    def report(self) -> Report:
        """Return a report that is a few seconds old at most."""
        with self._lock:
            known, changes = self._report, self._changes
            if known is not None and time.monotonic() < self._until:
                return known
        report, until = self._lvm.report(), time.monotonic() + FRESH
        with self._lock:
            if changes == self._changes:  # else it may be older than what we changed since
                self._report, self._until = report, until
        return report

    def add(self, volume: LogicalVolume, extents: int) -> None:
        """Take a creation of ours into account, which took so many extents of the group."""
        with self._lock:
            self._changes += 1
            if known := self._report:
                group = replace(known.group, free=known.group.free - extents)
                self._report = replace(known, group=group, volumes={**known.volumes, volume.name: volume})

    def drop(self, name: str) -> None:
        """Take a removal of ours into account. The space it gives back counts from the next look on."""
        with self._lock:
            self._changes += 1
            if known := self._report:
                rest = {one: volume for one, volume in known.volumes.items() if one != name}
                self._report = replace(known, volumes=rest)

    def forget(self) -> None:
        """Look anew next time: something was changed, or is not as it was seen."""
        with self._lock:
            self._changes += 1
            self._report = None
