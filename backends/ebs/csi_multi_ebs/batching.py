"""Lookups that come at the same time are asked as one question.

The first caller opens a batch, which others may join for a moment; then it is asked in a thread of its
own. So a question that hangs holds up only those who joined it, and each of them only until its deadline.
Nobody joins a question already asked: what happened before a lookup began must show in its answer.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from csi_multi.contract import Timeout

T = TypeVar("T")
Fetch = Callable[[Collection[str]], Mapping[str, T]]


class Batcher(Generic[T]):
    """Merges lookups by key of many threads. `fetch` returns what exists of at most `most` keys."""

    def __init__(self, fetch: Fetch[T], *, most: int, window: float = 0.03) -> None:
        """`window`: seconds that a batch waits for others to join; a full one does not wait."""
        self._fetch = fetch
        self._most = most
        self._window = window
        self._lock = threading.Lock()
        self._open: _Batch[T] | None = None

    def get(self, key: str, deadline: float | None = None) -> T | None:
        """Return what the key stands for, None when nothing. Raises what fetch raises, and Timeout at the deadline."""
        return self.many((key,), deadline).get(key)

    def many(self, keys: Iterable[str], deadline: float | None = None) -> dict[str, T]:
        """Return what exists of these keys. `deadline` is a time.monotonic(). Raises as `get` does."""
        joined = {key: self._join(key) for key in keys}
        answers = {batch: batch.answer(deadline) for batch in dict.fromkeys(joined.values())}
        return {key: answers[batch][key] for key, batch in joined.items() if key in answers[batch]}

    def _join(self, key: str) -> _Batch[T]:
        with self._lock:
            batch = self._open
            if batch is None:
                batch = _Batch()
                threading.Thread(target=self._ask, args=(batch,), name="ebs-lookup", daemon=True).start()
                self._open = batch
            batch.keys[key] = None
            if len(batch.keys) >= self._most:
                self._open = None
                batch.full.set()
            return batch

    def _ask(self, batch: _Batch[T]) -> None:
        batch.full.wait(self._window)
        with self._lock:
            if self._open is batch:
                self._open = None
        try:
            batch.found.set_result(self._fetch(list(batch.keys)))
        except BaseException as error:  # of any kind: it is raised in the callers
            batch.found.set_exception(error)


class _Batch(Generic[T]):
    """Keys that are asked for together, and the answer."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.full = threading.Event()
        self.found: Future[Mapping[str, T]] = Future()

    def answer(self, deadline: float | None) -> Mapping[str, T]:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            error = self.found.exception(left)
        except TimeoutError:
            raise Timeout("no answer in time to a lookup") from None
        if error:
            raise copy.copy(error) from error  # threads that raise one exception would mix their tracebacks
        return self.found.result()
