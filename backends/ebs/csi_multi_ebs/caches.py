"""Values that are kept for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from csi_multi.contract import StorageError

T = TypeVar("T")


class TtlCache(Generic[T]):
    """The result of `fetch` for `ttl` seconds; when fetching fails, the last result for another `ttl`. Thread-safe."""

    def __init__(self, fetch: Callable[[], T], ttl: float) -> None:
        self._fetch = fetch
        self._ttl = ttl
        self._cached: tuple[float, T] | None = None  # when it expires, time.monotonic(), and the result

    def get(self) -> T:
        """Raises what `fetch` raises when nothing is cached."""
        cached = self._cached
        if cached and time.monotonic() < cached[0]:
            return cached[1]
        try:
            result = self._fetch()
        except StorageError:
            if cached is None:
                raise
            result = cached[1]
        self._cached = (time.monotonic() + self._ttl, result)
        return result


class SingleUseCache(Generic[T]):
    """Up to `most` values that can be taken once, within `ttl` seconds. Thread-safe."""

    def __init__(self, ttl: float, most: int) -> None:
        self._ttl = ttl
        self._most = most
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[float, T]] = {}  # the oldest first: expiry, time.monotonic(), and the value

    def put(self, key: str, value: T) -> None:
        with self._lock:
            self._cached.pop(key, None)
            self._cached[key] = (time.monotonic() + self._ttl, value)
            while len(self._cached) > self._most:
                del self._cached[next(iter(self._cached))]

    def take(self, key: str) -> T | None:
        """Remove and return the value; None when there is none or it has expired."""
        with self._lock:
            expires, value = self._cached.pop(key, (0.0, None))
        return value if time.monotonic() < expires else None


class RecentKeys:
    """Up to `most` keys, each for `ttl` seconds after it was added last. Thread-safe."""

    def __init__(self, ttl: float, most: int) -> None:
        self._ttl = ttl
        self._most = most
        self._lock = threading.Lock()
        self._expires: dict[str, float] = {}  # the oldest first, time.monotonic()

    def add(self, key: str) -> None:
        with self._lock:
            self._expires.pop(key, None)
            self._expires[key] = time.monotonic() + self._ttl
            while len(self._expires) > self._most:
                del self._expires[next(iter(self._expires))]

    def discard(self, key: str) -> None:
        with self._lock:
            self._expires.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return time.monotonic() < self._expires.get(key, 0.0)
