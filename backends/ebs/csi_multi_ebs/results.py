"""A result that one thread gives and others wait for, each of which wakes once.

Those that wait for a Future or an Event wake twice: each of them needs the one lock of its condition, which the thread
that wakes them holds.
"""

from __future__ import annotations

import copy
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class NotYet(Exception):
    """There is no result yet."""


class Result(Generic[T]):
    """A value or an error, given once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[threading.Lock] = []  # a lock for each that waits, released when the result is there
        self.done = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def set_result(self, value: T) -> None:
        self._value = value
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def get(self, seconds: float | None) -> T:
        """Return the value, or raise the error; wait. Raises NotYet after so many seconds."""
        if not (self.done or self._wait(seconds)):
            raise NotYet
        if self._error is not None:
            # a copy each: threads that raise the same exception mix their tracebacks
            raise copy.copy(self._error) from self._error
        return self._value  # type: ignore[return-value]  # it is done, without an error

    def _wait(self, seconds: float | None) -> bool:
        own = threading.Lock()
        own.acquire()
        with self._lock:
            if self.done:
                return True
            self._waiting.append(own)
        return own.acquire(timeout=-1 if seconds is None else min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def _finish(self) -> None:
        with self._lock:
            self.done = True
            waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.release()
