"""Waiting until resources reach a state: one thread polls for all callers.

While anybody waits, the thread polls all keys that are waited for, at the interval of the caller that needs the
shortest one: short at first, then ever longer. To poll hundreds of keys is expensive, and a slow answer means that EC2
is loaded, so the thread pauses after each poll in proportion. It wakes only callers whose state is reached.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from csi_multi.contract import Timeout, Unavailable

from .results import NotYet, Result

T = TypeVar("T")
Fetch = Callable[[Collection[str]], Mapping[str, T]]

BACKOFF = 1 / 3  # the interval of a caller, as a part of the time that it has waited
CPU_PAUSE = 2.0  # the least pause after a poll, as a multiple of the processor time of the poll
LATENCY_PAUSE = 0.25  # and as a multiple of the time that EC2 took to answer
RETRIED = (Timeout, Unavailable)  # errors after which the next poll may succeed


class StatePoller(Generic[T]):
    """Polls for many threads. `fetch` returns what exists of at most `most` keys."""

    def __init__(self, fetch: Fetch[T], *, most: int, first: float = 0.2, longest: float = 5.0) -> None:
        """`first` and `longest`: seconds from the start of a wait, or from a poll, to the next poll."""
        self._fetch = fetch
        self._most = most
        self._first = first
        self._longest = longest
        self._condition = threading.Condition()
        self._waiting: set[_Waiter[T]] = set()
        self._running = False
        self._next = 0.0  # time.monotonic() of the next poll

    def wait(self, key: str, done: Callable[[T | None], bool], deadline: float) -> T | None:
        """Return the value of the key (None: nothing exists) as soon as `done` accepts it.

        Raises Timeout at the deadline, a time.monotonic(), with the last value; what `fetch` raises, unless the
        next poll may succeed; and what `done` raises, which is called in the polling thread.
        """
        one: _Waiter[T] = _Waiter(key, done, self._first)
        with self._condition:
            if not self._running:
                threading.Thread(target=self._poll, name="ebs-poller", daemon=True).start()
                self._running = True
            self._waiting.add(one)
            if one.due < self._next:
                self._condition.notify()
        try:
            return one.result(deadline)
        finally:
            with self._condition:
                self._waiting.discard(one)
                if not self._waiting:
                    self._condition.notify()

    def _poll(self) -> None:
        """Poll as long as anybody waits."""
        earliest = 0.0
        while waiting := self._due(earliest):
            started, cpu = time.monotonic(), time.thread_time()
            by_key: dict[str, list[_Waiter[T]]] = {}
            for one in waiting:
                by_key.setdefault(one.key, []).append(one)
            keys = list(by_key)
            for start in range(0, len(keys), self._most):
                some = keys[start : start + self._most]
                self._fetch_for(some, [one for key in some for one in by_key[key]])
            now, cpu = time.monotonic(), time.thread_time() - cpu
            earliest = max(started + self._first, now + CPU_PAUSE * cpu, now + LATENCY_PAUSE * (now - started))

    def _due(self, earliest: float) -> list[_Waiter[T]]:
        """Return all waiters once one of them is due, and set when they are due again; none: the thread ends."""
        with self._condition:
            while self._drop_finished():
                self._next = max(min(one.due for one in self._waiting), earliest)
                pause = self._next - time.monotonic()
                if pause <= 0:
                    for one in self._waiting:
                        one.reschedule(self._longest)
                    return list(self._waiting)
                self._condition.wait(pause)
            self._running = False
            return []

    def _drop_finished(self) -> bool:
        """Return whether anybody still waits. A caller that has its value may not have left yet."""
        self._waiting = {one for one in self._waiting if not one.finished}
        return bool(self._waiting)

    def _fetch_for(self, keys: list[str], waiting: Iterable[_Waiter[T]]) -> None:
        polled: Future[Mapping[str, T]] = Future()
        try:
            polled.set_result(self._fetch(keys))
        except BaseException as error:  # of any kind: the waiters raise it
            polled.set_exception(error)
        for one in waiting:
            one.receive(polled)


class _Waiter(Generic[T]):
    """One caller that waits: when its next poll is due, and what the last one returned."""

    def __init__(self, key: str, done: Callable[[T | None], bool], first: float) -> None:
        self.key = key
        self._done = done
        self._first = first
        self._began = time.monotonic()
        self.due = self._began + first
        self._result: Result[T | None] = Result()
        self._value: T | None = None
        self._error = ""  # of the last poll

    @property
    def finished(self) -> bool:
        return self._result.done

    def reschedule(self, longest: float) -> None:
        """Set when the next poll is due, if one is due now."""
        if (now := time.monotonic()) >= self.due:
            self.due = now + min(max(self._first, (now - self._began) * BACKOFF), longest)

    def receive(self, polled: Future[Mapping[str, T]]) -> None:
        """Take the result of a poll, in the polling thread, unless the wait is over."""
        if self._result.done:
            return
        if isinstance(error := polled.exception(), RETRIED):
            self._error = f"; the last poll failed: {error}"
            return
        try:
            self._value, self._error = polled.result().get(self.key), ""
            if self._done(self._value):
                self._result.set_result(self._value)
        except BaseException as error:  # of any kind: the waiter raises it
            self._result.set_exception(error)

    def result(self, deadline: float) -> T | None:
        """Return the value once `done` accepted it."""
        try:
            return self._result.get(deadline - time.monotonic())
        except NotYet:
            last = f"last seen: {_text(self._value)}{self._error}"
            raise Timeout(f"{self.key} did not reach its state before the deadline ({last}); try again") from None


def _text(value: object) -> str:
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value or "")) or "nothing"
