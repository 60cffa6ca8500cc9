"""Waiting for things to reach a state: all who wait are served by one question.

While anybody waits, one thread asks for everything waited for, as often as the most eager one wants: often at
first, then ever more rarely. A look at hundreds is dear, and one that takes long is a sign of others who ask too
much: it rests after each in proportion. It wakes only those who have what they wait for.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from csi_multi.contract import Timeout, Unavailable

T = TypeVar("T")
Fetch = Callable[[Collection[str]], Mapping[str, T]]

SLOWER = 1 / 3  # pauses of one who has waited long, as a part of the time that it has waited
WORK_REST = 2.0  # pauses after a look are at least this many times as long as the processor had to do with it
WAIT_REST = 0.25  # and as EC2 took to answer
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
        self._next = 0.0  # when the thread looks again, time.monotonic()

    def wait(self, key: str, done: Callable[[T | None], bool], deadline: float) -> T | None:
        """Return what is there (None: nothing) as soon as `done` says it is as wished.

        Raises Timeout at the deadline, a time.monotonic(), saying what was last seen; what fetch raises,
        unless a later look may do better; and what `done` raises, which is called in the thread that looks.
        """
        one: _Wait[T] = _Wait(key, done, self._first)
        with self._news:
            if not self._running:
                threading.Thread(target=self._look, name="ebs-watch", daemon=True).start()
                self._running = True
            self._waiting.add(one)
            if one.due < self._next:
                self._news.notify()
        try:
            return one.result(deadline)
        finally:
            with self._news:
                self._waiting.discard(one)
                if not self._waiting:
                    self._news.notify()

    def _look(self) -> None:
        """Look for everybody, as long as there is anybody."""
        earliest = 0.0
        while waiting := self._due(earliest):
            asked, worked = time.monotonic(), time.thread_time()
            by_key: dict[str, list[_Wait[T]]] = {}
            for one in waiting:
                by_key.setdefault(one.key, []).append(one)
            keys = list(by_key)
            for start in range(0, len(keys), self._most):
                some = keys[start : start + self._most]
                self._ask(some, [one for key in some for one in by_key[key]])
            now, worked = time.monotonic(), time.thread_time() - worked
            earliest = max(asked + self._first, now + WORK_REST * worked, now + WAIT_REST * (now - asked))

    def _due(self, earliest: float) -> list[_Wait[T]]:
        """Return all who wait once one of them is due, and note when they are due again; nobody: the end."""
        with self._news:
            while self._waiting:
                self._next = max(min(one.due for one in self._waiting), earliest)
                pause = self._next - time.monotonic()
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

    def __init__(self, key: str, done: Callable[[T | None], bool], first: float) -> None:
        self.key = key
        self._done = done
        self._first = first
        self._began = time.monotonic()
        self.due = self._began + first
        self._result: Future[T | None] = Future()
        self._row: T | None = None
        self._trouble = ""  # of the last look

    def looked(self, longest: float) -> None:
        """Set when the next look is due, if one was due now."""
        if (now := time.monotonic()) >= self.due:
            self.due = now + min(max(self._first, (now - self._began) * SLOWER), longest)

    def tell(self, look: Future[Mapping[str, T]]) -> None:
        """Hear what a look showed, in the thread that looks, until it is what was waited for."""
        if self._result.done():
            return
        if isinstance(trouble := look.exception(), SURVIVED):
            self._trouble = f"; the last look failed: {trouble}"
            return
        try:
            self._row, self._trouble = look.result().get(self.key), ""
            if self._done(self._row):
                self._result.set_result(self._row)
        except BaseException as error:  # of any kind: it is raised in the one who waits
            self._result.set_exception(error)

    def result(self, deadline: float) -> T | None:
        """Return what was waited for."""
        try:
            error = self._result.exception(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            seen = f"last seen: {self._row or 'nothing'}{self._trouble}"
            raise Timeout(f"waited too long for {self.key}; {seen}") from None
        if error:
            raise copy.copy(error) from error  # threads that raise one exception would mix their tracebacks
        return self._result.result()
