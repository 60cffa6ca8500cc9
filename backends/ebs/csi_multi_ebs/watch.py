"""Waiting for things to reach a state: all who wait are served by one question.

While anybody waits, one thread asks for everything waited for, as often as the most eager one wants: often at
first, then ever more rarely, and never for more than a third of the time, because a look at hundreds is dear.
Whether a state is the wished one is decided by the one who waits.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from csi_multi.errors import Timeout, Unavailable

T = TypeVar("T")
Fetch = Callable[[Collection[str]], Mapping[str, T]]

SLOWER = 1.5  # how much longer each pause is than the one before
REST = 2.0  # pauses after a look are at least this many times as long as it took
SURVIVED = (Timeout, Unavailable)  # what a later look may do better


class Watch(Generic[T]):
    """Looks for many threads. `fetch` returns what exists of at most `most` keys."""

    def __init__(self, fetch: Fetch[T], *, most: int, first: float = 0.2, longest: float = 5.0) -> None:
        """`first` and `longest`: seconds between a beginning or a look and the next look, at first and later."""
        self._fetch = fetch
        self._most = most
        self._first = first
        self._longest = longest
        self._news = threading.Condition()
        self._waiting: set[_Wait[T]] = set()
        self._running = False

    def wait(self, key: str, done: Callable[[T | None], bool], deadline: float) -> T | None:
        """Return what is there (None: nothing) as soon as `done` says it is as wished.

        Raises Timeout at the deadline, a time.monotonic(), saying what was last seen; what fetch raises,
        unless a later look may do better; and what `done` raises.
        """
        one: _Wait[T] = _Wait(key, self._first)
        with self._news:
            if not self._running:
                threading.Thread(target=self._look, name="ebs-watch", daemon=True).start()
                self._running = True
            self._waiting.add(one)
            self._news.notify()
        try:
            while True:
                row = one.next(deadline)
                if done(row):
                    return row
        finally:
            with self._news:
                self._waiting.discard(one)
                self._news.notify()

    def _look(self) -> None:
        """Look for everybody, as long as there is anybody."""
        earliest = 0.0
        while waiting := self._due(earliest):
            asked = time.monotonic()
            by_key: dict[str, list[_Wait[T]]] = {}
            for one in waiting:
                by_key.setdefault(one.key, []).append(one)
            keys = list(by_key)
            for start in range(0, len(keys), self._most):
                some = keys[start : start + self._most]
                self._ask(some, [one for key in some for one in by_key[key]])
            took = time.monotonic() - asked
            earliest = asked + max(self._first, (1 + REST) * took)

    def _due(self, earliest: float) -> list[_Wait[T]]:
        """Return all who wait once one of them is due, and note when they are due again; nobody: the end."""
        with self._news:
            while self._waiting:
                due = max(min(one.due for one in self._waiting), earliest)
                pause = due - time.monotonic()
                if pause <= 0:
                    for one in self._waiting:
                        one.looked(self._longest)
                    return list(self._waiting)
                self._news.wait(pause)
            self._running = False
            return []

    def _ask(self, keys: list[str], waiting: Iterable[_Wait[T]]) -> None:
        look: Future[Mapping[str, T]] = Future()
        try:
            look.set_result(self._fetch(keys))
        except BaseException as error:  # of any kind: it is raised in those who wait
            look.set_exception(error)
        for one in waiting:
            one.tell(look)


class _Wait(Generic[T]):
    """One who waits, when the next look is due, and what the last one showed."""

    def __init__(self, key: str, pause: float) -> None:
        self.key = key
        self.due = time.monotonic() + pause
        self._pause = pause
        self._told = threading.Event()
        self._row: T | None = None
        self._trouble: BaseException | None = None

    def looked(self, longest: float) -> None:
        """Set when the next look is due, if one was due now."""
        if (now := time.monotonic()) >= self.due:
            self._pause = min(self._pause * SLOWER, longest)
            self.due = now + self._pause

    def tell(self, look: Future[Mapping[str, T]]) -> None:
        """Hand over what a look showed, from the thread that looks."""
        self._trouble = look.exception()
        if self._trouble is None:
            self._row = look.result().get(self.key)
        self._told.set()

    def next(self, deadline: float) -> T | None:
        """Return what the next look that succeeds shows."""
        while self._told.wait(max(0.0, deadline - time.monotonic())):
            self._told.clear()
            if self._trouble is None:
                return self._row
            if not isinstance(self._trouble, SURVIVED):
                raise copy.copy(self._trouble) from self._trouble
        raise Timeout(self._last())

    def _last(self) -> str:
        trouble = f"; the last look failed: {self._trouble}" if self._trouble else ""
        return f"waited too long for {self.key}; last seen: {self._row or 'nothing'}{trouble}"
