"""Whether the pool is full: then Ceph holds every write for ever, and a command waits for its time limit.

Commands that wait at the same time look once. They are many while the cluster is slow, and a look costs more than most
of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .errors import PoolFull

LOOK_SECONDS = 5.0  # after which a command that has not ended is worth a look
FRESH_SECONDS = 3.0  # for which what a look has found is used


class FullPool:
    """The last look at the pool of one instance. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._found: PoolFull | None = None

    def look(self, ask: Callable[[], PoolFull | None]) -> PoolFull | None:
        """Return an error if the pool is full. `ask` looks, unless another command has just done so."""
        with self._lock:
            if self._looked is None or self._clock() - self._looked >= FRESH_SECONDS:
                self._found = ask()
                self._looked = self._clock()
            if self._found is None:
                return None
            error = PoolFull(str(self._found))
            error.silent = self._found.silent
            return error
