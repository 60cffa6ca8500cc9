"""An answer that is believed for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from csi_multi.errors import StorageError

T = TypeVar("T")


class Kept(Generic[T]):
    """What `fetch` returns, asked anew after `last` seconds, or believed on when that fails. Threads may share it."""

    def __init__(self, fetch: Callable[[], T], last: float) -> None:
        self._fetch = fetch
        self._last = last
        self._kept: tuple[float, T] | None = None  # until when it is believed, time.monotonic(), and what

    def get(self) -> T:
        """Raises what `fetch` raises, when there is nothing to believe."""
        kept = self._kept
        if kept and time.monotonic() < kept[0]:
            return kept[1]
        try:
            answer = self._fetch()
        except StorageError:
            if kept is None:
                raise
            answer = kept[1]
        self._kept = (time.monotonic() + self._last, answer)
        return answer
