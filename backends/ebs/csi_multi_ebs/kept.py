"""Answers that are believed for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from csi_multi.contract import StorageError

T = TypeVar("T")


class Kept(Generic[T]):
    """What `fetch` returns, asked anew after `last` seconds, or believed on when that fails. Threads may share it."""

    def __init__(self, fetch: Callable[[], T], last: float) -> None:
        self._fetch = fetch
        self._last = last
        self._kept: tuple[float, T] | None = None  # until when it is believed, time.monotonic(), and what

    def get(self) -> T:
        """Raises what `fetch` raises, when there is nothing to believe."""
        kept = self._kept
        if kept and time.monotonic() < kept[0]:
            return kept[1]
        try:
            answer = self._fetch()
        except StorageError:
            if kept is None:
                raise
            answer = kept[1]
        self._kept = (time.monotonic() + self._last, answer)
        return answer


class Once(Generic[T]):
    """What was just seen, each of the latest `most` once, and within `last` seconds. Threads may share it."""

    def __init__(self, last: float, most: int) -> None:
        self._last = last
        self._most = most
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, T]] = {}  # the oldest first: until when, time.monotonic(), and what

    def put(self, key: str, seen: T) -> None:
        with self._lock:
            self._seen.pop(key, None)
            self._seen[key] = (time.monotonic() + self._last, seen)
            while len(self._seen) > self._most:
                del self._seen[next(iter(self._seen))]

    def take(self, key: str) -> T | None:
        """Return what was put there, unless that is too long ago or it was taken before."""
        with self._lock:
            until, seen = self._seen.pop(key, (0.0, None))
        return seen if time.monotonic() < until else None
