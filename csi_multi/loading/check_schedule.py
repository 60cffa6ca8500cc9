"""When the storage of an instance is checked again.

A check that only asks whether the storage answers (Backend.check_only_asks) is left out while RPCs show that it does,
and made rarely while there are none. After a failure, and while the storage is down, it is made at the usual interval.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

IDLE_SECONDS = 300.0  # from the last success, or the last check, until a storage that nobody uses is checked


class CheckSchedule:
    """The schedule of one instance. Thread-safe; the outcomes come from the threads of RPCs."""

    def __init__(self, only_asks: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._only_asks = only_asks
        self._clock = clock
        self._checked = self._succeeded = clock()
        self._failed = False  # since the last check began
        self._retired = False
        self._changed = threading.Event()  # set when the check may be due earlier than it was

    def record(self, success: bool) -> None:
        """Take note of the outcome of a call that needed the storage."""
        if success:
            self._succeeded = self._clock()
        elif not self._failed:
            self._failed = True
            self._changed.set()

    def retire(self) -> None:
        """End `wait`: there are no more checks."""
        self._retired = True
        self._changed.set()

    def begin(self) -> None:
        """Forget earlier failures, which the check that begins now judges."""
        self._failed = False

    def end(self) -> None:
        """Count from now until the next check."""
        self._checked = self._clock()

    def left(self, seconds: float, down: bool) -> float:
        """Return in how many seconds a check is due, 0 or less: now. `seconds` is the usual interval."""
        if not self._only_asks or down or self._failed:
            return self._checked + seconds - self._clock()
        return max(self._checked, self._succeeded) + max(seconds, IDLE_SECONDS) - self._clock()

    def wait(self, seconds: Callable[[], float], down: Callable[[], bool]) -> bool:
        """Wait until a check is due; False: there are no more."""
        while not self._retired:
            self._changed.clear()
            left = self.left(interval := seconds(), down())
            if left <= 0:
                return True
            if not self._retired:
                self._changed.wait(min(left, interval))  # the interval may be another one then
        return False
