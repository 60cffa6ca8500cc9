"""Helpers for tests of concurrent code: simultaneous calls, and threads that must end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_together(*calls: Callable[[], T]) -> list[T | Exception]:
    """Run all at once, each in a thread; return what they returned or raised."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | Exception:
        start.wait()
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def wait_until_ended(name: str) -> None:
    """Wait until no thread of this name is left."""
    limit = time.monotonic() + 5
    while any(thread.name == name for thread in threading.enumerate()):
        assert time.monotonic() < limit, f"a thread {name} is still there"
        time.sleep(0.005)
