"""Code that may hang runs in a thread of its own, and the caller stops waiting for it after a limit.

Python cannot end a thread from outside; this one is a daemon, so it does not keep the process alive.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from . import kept_threads

log = logging.getLogger(__name__)

T = TypeVar("T")


class CallHung(Exception):
    """The call did not return within its limit, and may still run."""


class CallExited(Exception):
    """The call tried to end the process or its thread; the text names the exception it raised."""


class CallNotStarted(Exception):
    """No thread could be started for the call; the text says why."""


class SupervisedCall(Generic[T]):
    """A function that runs in a thread of this name."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self._function = function
        self._error: Exception | None = None
        self._ended = threading.Lock()  # held until then. An Event takes three more locks
        self._ended.acquire()
        try:
            self._start(name)
        except RuntimeError as error:  # no thread can be started now, which ends neither the caller nor its thread
            log.error("%s was not done: %s", name, error)
            self._error = CallNotStarted(str(error))
            self._ended.release()

    def _start(self, name: str) -> None:
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result: T = self._function()
        except Exception as error:
            self._error = error
        except BaseException as error:  # a real Ctrl-C arrives in the main thread, so this one is the function's own
            self._error = CallExited(type(error).__name__)
            self._error.__cause__ = error
        finally:
            self._ended.release()

    def done(self, seconds: float) -> bool:
        """Wait at most this long; return whether the function has returned."""
        if not self._ended.acquire(timeout=seconds):
            return False
        self._ended.release()
        return True

    def result(self, seconds: float) -> T:
        """Return the function's result, or raise its error; CallHung when it has neither in time."""
        if not self.done(seconds):
            raise CallHung(f"did not return within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._result


class ShortCall(SupervisedCall[T]):
    """A function that usually returns at once; it runs in a thread that is kept for the next one."""

    def _start(self, name: str) -> None:
        kept_threads.run(name, self._run)
