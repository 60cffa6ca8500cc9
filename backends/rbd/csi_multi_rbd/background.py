"""A thread that works through tasks in the background, one after the other, and retries those that fail."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from csi_multi.contract import StorageError

log = logging.getLogger(__name__)

RETRY = 30.0  # seconds until a failed task is retried: by then the watch of a killed client has ended
LONGEST_RETRY = 3600.0  # seconds: a task that fails again is retried after twice the time, up to this
CLOSE_TIMEOUT = 2.0  # seconds


class BackgroundWorker:
    """Calls `task` with each key that is submitted. The thread starts with the first key, and ends with the process."""

    def __init__(self, name: str, task: Callable[[str], None], *, pause: float = RETRY) -> None:
        self._name = name
        self._task = task
        self._retry_after = pause
        self._condition = threading.Condition()
        self._due: list[tuple[float, str]] = []  # a heap: time.monotonic() and key
        self._pending: set[str] = set()
        self._retries: dict[str, float] = {}  # by key of a failed task: seconds after which it is retried
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, key: str, *, after: float = 0.0) -> None:
        """Queue a key. A key that is queued already is not queued twice."""
        with self._condition:
            if self._closed or (key in self._pending and after):
                return
            self._pending.add(key)
            heapq.heappush(self._due, (time.monotonic() + after, key))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def withdraw(self, key: str) -> None:
        """Take a key out of the queue: its task is done. One that is running goes on."""
        with self._condition:
            self._pending.discard(key)
            self._retries.pop(key, None)
            self._condition.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until no task is left; return whether that is so."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._pending and not self._busy, seconds)

    def close(self) -> None:
        """Start no more tasks. Does not wait long for the running one, since every task can be repeated."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            thread = self._thread
        if thread:
            thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (key := self._next()) is not None:
            error = self._run_task(key)
            pause = self._retries.pop(key, self._retry_after / 2)
            if isinstance(error, StorageError):
                self._retries[key] = pause = min(2 * pause, LONGEST_RETRY)
                log.warning("%s: %s failed: %s; it is retried in %g s", self._name, key, error, pause)
                self.submit(key, after=pause)
            elif error:
                log.error("%s: %s failed unexpectedly and is not retried", self._name, key, exc_info=error)
            with self._condition:
                self._busy = False
                self._condition.notify_all()

    def _run_task(self, key: str) -> BaseException | None:
        """Run the task; return its exception."""
        future: Future[None] = Future()
        try:
            future.set_result(self._task(key))
        except Exception as error:
            future.set_exception(error)
        return future.exception()

    def _next(self) -> str | None:
        """Wait for the next key that is due; None after close."""
        with self._condition:
            while not self._closed:
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._condition.wait(wait)
                    continue
                _, key = heapq.heappop(self._due)
                if key in self._pending:
                    self._pending.discard(key)
                    self._busy = True
                    return key
        return None
