"""Lookups that arrive at the same time become one call.

The first caller opens a batch that others may join for a moment; then a thread of its own fetches it. A call that
hangs delays only the callers in its batch, and each of them only until its deadline. A batch that is being fetched
already is joined only by callers that say so: a result must show what happened before a fresh lookup began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, TypeVar

from csi_multi.contract import Timeout

from .results import NotYet, Result

T = TypeVar("T")
Fetch = Callable[[Collection[str]], Mapping[str, T]]


class Batcher(Generic[T]):
    """Merges lookups by key of many threads. `fetch` returns what exists of at most `most` keys."""

    def __init__(self, fetch: Fetch[T], *, most: int, window: float = 0.03) -> None:
        """`window`: seconds for which a batch stays open; a full one is fetched at once."""
        self._fetch = fetch
        self._most = most
        self._window = window
        self._lock = threading.Lock()
        self._open: _Batch[T] | None = None
        self._running: dict[str, _Batch[T]] = {}  # what is being fetched, by key: the batch that began last

    def get(self, key: str, deadline: float | None = None, *, fresh: bool = True) -> T | None:
        """Return the value of the key, None without one. Raises what fetch raises, and Timeout at the deadline.

        `fresh` False: a result that is being fetched already will do.
        """
        return self.many((key,), deadline, fresh=fresh).get(key)

    def many(self, keys: Iterable[str], deadline: float | None = None, *, fresh: bool = True) -> dict[str, T]:
        """Return what exists of these keys. `deadline` is a time.monotonic(). Raises as `get` does."""
        joined = {key: self._join(key, fresh) for key in keys}
        results = {batch: batch.result(deadline) for batch in dict.fromkeys(joined.values())}
        return {key: results[batch][key] for key, batch in joined.items() if key in results[batch]}

    def _join(self, key: str, fresh: bool) -> _Batch[T]:
        with self._lock:
            if not fresh and (running := self._running.get(key)):
                return running
            batch = self._open
            if batch is None:
                batch = _Batch()
                threading.Thread(target=self._fetch_batch, args=(batch,), name="ebs-lookup", daemon=True).start()
                self._open = batch
            batch.keys[key] = None
            if len(batch.keys) >= self._most:
                self._open = None
                batch.full.set()
            return batch

    def _fetch_batch(self, batch: _Batch[T]) -> None:
        batch.full.wait(self._window)
        with self._lock:
            if self._open is batch:
                self._open = None
            self._running |= dict.fromkeys(batch.keys, batch)
        try:
            batch.found.set_result(self._fetch(list(batch.keys)))
        except BaseException as error:  # of any kind: the callers raise it
            batch.found.set_exception(error)
        with self._lock:
            self._running = {key: one for key, one in self._running.items() if one is not batch}


class _Batch(Generic[T]):
    """Keys that are looked up together, and the result."""

    def __init__(self) -> None:
        self.keys: dict[str, None] = {}
        self.full = threading.Event()
        self.found: Result[Mapping[str, T]] = Result()

    def result(self, deadline: float | None) -> Mapping[str, T]:
        try:
            return self.found.get(None if deadline is None else deadline - time.monotonic())
        except NotYet:
            raise Timeout("EC2 did not answer a lookup before the deadline; try again") from None
