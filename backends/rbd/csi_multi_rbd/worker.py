"""One thread that does things in the background, one after the other, and again after a while when they fail."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from csi_multi.contract import StorageError

log = logging.getLogger(__name__)

PAUSE = 30.0  # seconds until what failed is tried again: a client that was killed is known as dead by then
LONGEST = 3600.0  # seconds: what goes on failing is tried ever more rarely
CLOSING = 2.0  # seconds


class Worker:
    """Call `act` with each key that is asked for. The thread starts with the first one, and ends with the process."""

    def __init__(self, name: str, act: Callable[[str], None], *, pause: float = PAUSE) -> None:
        self._name = name
        self._act = act
        self._pause = pause
        self._changed = threading.Condition()
        self._due: list[tuple[float, str]] = []  # a heap: time.monotonic() and key
        self._wanted: set[str] = set()
        self._pauses: dict[str, float] = {}  # by what failed: seconds until it was to be tried again
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def ask(self, key: str, *, after: float = 0.0) -> None:
        """Have it done, once, however often it is asked for before its turn comes."""
        with self._changed:
            if self._closed or (key in self._wanted and after):
                return
            self._wanted.add(key)
            heapq.heappush(self._due, (time.monotonic() + after, key))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def idle(self, seconds: float) -> bool:
        """Wait until nothing is left to do; say whether it came to that."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and not self._busy, seconds)

    def close(self) -> None:
        """Begin nothing more. What runs is not waited for long: it is repeatable."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread:
            thread.join(CLOSING)

    def _run(self) -> None:
        while (key := self._next()) is not None:
            error = self._done(key)
            pause = self._pauses.pop(key, self._pause / 2)
            if isinstance(error, StorageError):
                self._pauses[key] = pause = min(2 * pause, LONGEST)
                log.warning("%s: %s: %s; it is tried again in %g s", self._name, key, error, pause)
                self.ask(key, after=pause)
            elif error:
                log.error("%s: %s failed in an unexpected way", self._name, key, exc_info=error)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _done(self, key: str) -> BaseException | None:
        """Do it; return what went wrong."""
        future: Future[None] = Future()
        try:
            future.set_result(self._act(key))
        except Exception as error:
            future.set_exception(error)
        return future.exception()

    def _next(self) -> str | None:
        """Wait for the next key that is due; None when there will be no more."""
        with self._changed:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, key = heapq.heappop(self._due)
                if key in self._wanted:
                    self._wanted.discard(key)
                    self._busy = True
                    return key
        return None
