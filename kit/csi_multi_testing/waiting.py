"""Waiting for a condition: until it holds, and not for a fixed time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

BACK_SECONDS = 60.0  # for which a backend may go on to refuse after its storage is back: caches, circuit breakers
PAUSE = 0.1  # seconds between two tries
ROUNDS = 3  # of calls of which one may need that another one was made


def wait_for(read: Callable[[], T], fits: Callable[[T], object], seconds: float) -> T:
    """Read again and again until the answer fits, for this many seconds at most. Return the last answer."""
    ends = time.monotonic() + seconds
    while not fits(found := read()) and time.monotonic() < ends:
        time.sleep(PAUSE)
    return found


def make_all(calls: Iterable[Callable[[], Any]], retryable: tuple[type[Exception], ...]) -> None:
    """Make all calls, each once at least, and again those that fail.

    Errors of these classes are waited for, BACK_SECONDS in all. Raises the first error that remains.
    """
    rest, ends = list(calls), time.monotonic() + BACK_SECONDS
    for number in itertools.count(1):
        failed = []
        for call in rest:
            try:
                call()
            except Exception as error:
                failed.append((call, error))
        if not failed:
            return
        waits = time.monotonic() < ends and any(isinstance(error, retryable) for _, error in failed)
        if len(failed) == len(rest):
            if number >= ROUNDS and not waits:
                raise failed[0][1]
            time.sleep(PAUSE)
        rest = [call for call, _ in failed]
