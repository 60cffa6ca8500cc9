"""Whether a node can be reached, remembered, so that a node that is down costs nobody's time.

Closed: calls go out. One that does not get through opens it: calls are refused at once. After PAUSE
seconds one caller may try, while the others are still refused; its success closes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ..contract.errors import Unavailable

log = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between two tries of a node that is down


class Circuit:
    """The verdict on one node; `name` is how messages name it."""

    def __init__(
        self, name: str, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._name = name
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._reason = ""  # "": closed
        self._since = self._since_wall = self._next = 0.0

    def admit(self) -> bool:
        """Return whether the caller is the one that tries a node which was down. Raises Unavailable while it is."""
        with self._lock:
            if not self._reason:
                return False
            if self._clock() < self._next:
                raise self._down()
            self._next = self._clock() + PAUSE  # also when the one who tries never comes back
            return True

    def worked(self) -> None:
        """The node answered, whatever it said."""
        with self._lock:
            was, self._reason = self._reason, ""
        if was:
            log.info("%s is reached again", self._name)

    def failed(self, reason: str) -> Unavailable:
        """A call did not get through. Return the error to raise."""
        with self._lock:
            new = not self._reason
            if new:
                self._since, self._since_wall = self._clock(), self._wall()
            self._reason = reason
            self._next = self._clock() + PAUSE
            error = self._down()
        if new:
            log.warning("%s", error)
        return error

    def reason(self) -> str:
        """Return why the node is down; "" while it is not."""
        return self._reason

    def _down(self) -> Unavailable:
        age = self._clock() - self._since
        since = datetime.fromtimestamp(self._since_wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return Unavailable(f"{self._name} cannot be reached since {since} ({age:.0f} s): {self._reason}")
