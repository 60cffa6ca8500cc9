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
        self._begun: dict[str, tuple[float, str]] = {}  # by name, the oldest first: when, time.monotonic(), and where

    def __contains__(self, name: str) -> bool:
        """Whether there was a doubt that nobody has ended, however long ago."""
        return name in self._begun

    def begin(self, name: str, where: str = "") -> None:
        """From now on there is a doubt, also where an earlier one is nearly over. `where`: in which zone, if known."""
        with self._guard:
            self._begun.pop(name, None)
            self._begun[name] = (time.monotonic(), where)
            while len(self._begun) > REMEMBERED:
                del self._begun[next(iter(self._begun))]

    def end(self, name: str) -> None:
        with self._guard:
            self._begun.pop(name, None)

    def lasts(self, name: str) -> bool:
        begun = self._begun.get(name)
        return begun is not None and time.monotonic() - begun[0] < self._last

    def where(self, name: str) -> str:
        """Return the zone of a doubt that lasts; "": there is none, or it is not known."""
        begun = self._begun.get(name)
        return begun[1] if begun and self.lasts(name) else ""
