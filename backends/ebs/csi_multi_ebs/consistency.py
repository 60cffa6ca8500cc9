"""How long EC2 may not show what another process did just before this one took over from it.

The time is counted from the first request that this process gets, and not from its start: until then it may have been a
standby, whose sidecar was not the leader.
"""

from __future__ import annotations

import threading
import time


class ConsistencyWindow:
    """For how long EC2 may not show changes of another process. One for each kind of request, because each sidecar
    elects its own leader. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._end: float | None = None  # time.monotonic()

    def left(self) -> float:
        """Return for how many seconds EC2 may not show it yet, 0 or less: it shows all. The first call is the start."""
        with self._lock:
            now = time.monotonic()
            if self._end is None:
                self._end = now + self._seconds
            return self._end - now
