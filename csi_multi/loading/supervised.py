"""Backend code that may hang runs in a thread of its own, and the caller stops waiting for it after a limit.

Python cannot end a thread from outside; this one is a daemon, so it does not keep the process alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class CallHung(Exception):
    """The call did not return within its limit, and may still run."""


class CallExited(Exception):
    """The call tried to end the process or its thread; the text names the exception it raised."""


class SupervisedCall(Generic[T]):
    """A function that runs in a thread of this name."""

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
        except BaseException as error:  # a real Ctrl-C arrives in the main thread, so this one is the function's own
            self._error = CallExited(type(error).__name__)

    def done(self, seconds: float) -> bool:
        """Wait at most this long; return whether the function has returned."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self, seconds: float) -> T:
        """Return the function's result, or raise its error; CallHung when it has neither in time."""
        if not self.done(seconds):
            raise CallHung(f"did not return within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._result
