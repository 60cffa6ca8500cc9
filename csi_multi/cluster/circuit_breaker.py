"""Remembers that a node is unreachable, so that calls to it fail at once.

Closed: calls go out. A call that does not reach the node opens the breaker: calls are refused at once. After
RETRY_INTERVAL one caller may try, while the others are still refused; its success closes the breaker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ..contract.errors import Unavailable

log = logging.getLogger(__name__)

RETRY_INTERVAL = 2.0  # seconds between two tries of an unreachable node


class CircuitBreaker:
    """The state of one node; messages call it `name`."""

    def __init__(
        self, name: str, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._name = name
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._reason = ""  # "": closed
        self._since = self._since_wall = self._next_try = 0.0

    def admit(self) -> bool:
        """Return whether the caller is the one that tries an unreachable node. Raises Unavailable for all others."""
        with self._lock:
            if not self._reason:
                return False
            if self._clock() < self._next_try:
                raise self._unavailable()
            self._next_try = self._clock() + RETRY_INTERVAL  # also when that caller never returns
            return True

    def record_success(self) -> None:
        """The node answered, with whatever result: close."""
        with self._lock:
            reason, self._reason = self._reason, ""
        if reason:
            log.info("%s is reachable again", self._name)

    def record_failure(self, reason: str) -> Unavailable:
        """A call did not reach the node: open. Return the error to raise."""
        with self._lock:
            opened = not self._reason
            if opened:
                self._since, self._since_wall = self._clock(), self._wall_clock()
            self._reason = reason
            self._next_try = self._clock() + RETRY_INTERVAL
            error = self._unavailable()
        if opened:
            log.warning("%s", error)
        return error

    def reason(self) -> str:
        """Return why the node is unreachable; "" while it is reachable."""
        return self._reason

    def _unavailable(self) -> Unavailable:
        age = self._clock() - self._since
        since = datetime.fromtimestamp(self._since_wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return Unavailable(f"{self._name} has been unreachable since {since} ({age:.0f} s): {self._reason}")
