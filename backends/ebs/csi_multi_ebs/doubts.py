"""Names under which EC2 may have made something that it does not show yet."""

from __future__ import annotations

import threading
import time

REMEMBERED = 1000  # names


class Doubts:
    """Doubts end when somebody says so, and mean nothing any more after `last` seconds. Threads may share it."""

    def __init__(self, last: float) -> None:
        self._last = last
        self._guard = threading.Lock()
        self._since: dict[str, float] = {}  # by name, the oldest first: time.monotonic()

    def __contains__(self, name: str) -> bool:
        """Whether there was a doubt that nobody has ended, however long ago."""
        return name in self._since

    def begin(self, name: str) -> None:
        """From now on there is a doubt, also where an earlier one is nearly over."""
        with self._guard:
            self._since.pop(name, None)
            self._since[name] = time.monotonic()
            while len(self._since) > REMEMBERED:
                del self._since[next(iter(self._since))]

    def end(self, name: str) -> None:
        with self._guard:
            self._since.pop(name, None)

    def lasts(self, name: str) -> bool:
        since = self._since.get(name)
        return since is not None and time.monotonic() - since < self._last
