"""Locks on objects: a second operation on the same object is refused instead of queued.

With a queue one hanging volume could use up the thread pool, until Probe times out and the supervisor kills
the driver. A refusal is cheap: the orchestrator tries again, and by then finds the result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..contract.errors import Busy

LockKey = tuple[str, str]  # (family, name or id), for example ("volume", "fast/node-1/pvc-1")


@dataclass(frozen=True, slots=True)
class LockHolder:
    operation: str
    since: float  # time.monotonic()
    shared: bool


class Locks:
    """Which operation holds which object. A shared holder excludes exclusive ones, but no other shared one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[LockKey, list[LockHolder]] = {}

    @contextmanager
    def hold(self, operation: str, exclusive: Sequence[LockKey], shared: Sequence[LockKey] = ()) -> Iterator[None]:
        """Hold all keys for the block. Raises Busy, naming the operation that holds one of them and for how long."""
        since = time.monotonic()
        wanted = {key: LockHolder(operation, since, shared=True) for key in shared}
        wanted |= {key: LockHolder(operation, since, shared=False) for key in exclusive}
        with self._lock:
            for key, holder in wanted.items():
                self._refuse_if_held(key, holder)
            for key, holder in wanted.items():
                self._holders.setdefault(key, []).append(holder)
        try:
            yield
        finally:
            with self._lock:
                for key, holder in wanted.items():
                    self._release(key, holder)

    def held(self) -> list[tuple[LockKey, str, float]]:
        """Return (key, operation, age in seconds) of all held keys, oldest first."""
        now = time.monotonic()
        with self._lock:
            rows = [(key, one.operation, now - one.since) for key, many in self._holders.items() for one in many]
        return sorted(rows, key=lambda row: -row[2])

    def _refuse_if_held(self, key: LockKey, wanted: LockHolder) -> None:
        for holder in self._holders.get(key, ()):
            if not (holder.shared and wanted.shared):
                age = time.monotonic() - holder.since
                raise Busy(f"{holder.operation} has held {key[0]} {key[1]!r} for {age:.1f} s; try again")

    def _release(self, key: LockKey, holder: LockHolder) -> None:
        holders = [one for one in self._holders[key] if one is not holder]
        if holders:
            self._holders[key] = holders
        else:
            del self._holders[key]
