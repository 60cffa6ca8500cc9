"""Foreign code that may never come back runs in a thread of its own, which is given up after a while.

A thread cannot be ended from outside; this one is a daemon, so it does not keep the process alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class CallHung(Exception):
    """It has not come back in time, and may still run."""


class CallExited(Exception):
    """It wanted to end the process, or this thread; the text is how."""


class SupervisedCall(Generic[T]):
    """A function that is running in a thread of this name."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self._function = function
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result: T = self._function()
            self._error: Exception | None = None
        except Exception as error:
            self._error = error
        except BaseException as error:  # ours alone mean what they say: Ctrl-C comes to the main thread
            self._error = CallExited(type(error).__name__)

    def done(self, seconds: float) -> bool:
        """Wait; say whether it has come back."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self, seconds: float) -> T:
        """Return what it returned, or raise what it raised; Hung when it does neither in time."""
        if not self.done(seconds):
            raise CallHung(f"has not come back for {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._result
