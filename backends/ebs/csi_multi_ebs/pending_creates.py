"""Creations whose result is not known yet, and the client tokens that let EC2 recognize a repeated creation."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator

MAX_NAMES = 1000  # names that are remembered
ATTEMPTS = 20  # client tokens per name


class PendingCreates:
    """The names under which EC2 may have created a volume that it does not show yet. Thread-safe.

    An entry counts for `seconds`, unless it is removed before.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[float, str]] = {}  # by name, the oldest first: time.monotonic(), zone

    def __contains__(self, name: str) -> bool:
        """Return whether there is an entry, however old."""
        return name in self._entries

    def add(self, name: str, zone: str = "") -> None:
        """Add or renew an entry. `zone`: where the volume may be, if known."""
        with self._lock:
            self._entries.pop(name, None)
            self._entries[name] = (time.monotonic(), zone)
            while len(self._entries) > MAX_NAMES:
                del self._entries[next(iter(self._entries))]

    def remove(self, name: str) -> None:
        with self._lock:
            self._entries.pop(name, None)

    def is_pending(self, name: str) -> bool:
        """Return whether there is an entry that is not too old."""
        entry = self._entries.get(name)
        return entry is not None and time.monotonic() - entry[0] < self._seconds

    def zone(self, name: str) -> str:
        """Return the zone of a pending creation; "" when none is pending or the zone is not known."""
        entry = self._entries.get(name)
        return entry[1] if entry and self.is_pending(name) else ""


def client_tokens(owner: str, name: str) -> Iterator[str]:
    """Yield the client tokens of a name, the same ones in the same order in every process.

    After a long series of failures the token of the current hour still allows another attempt.
    """
    for attempt in (*range(ATTEMPTS), f"hour {int(time.time() // 3600)}"):
        yield hashlib.sha256(f"{owner}\n{name}\n{attempt}".encode()).hexdigest()
