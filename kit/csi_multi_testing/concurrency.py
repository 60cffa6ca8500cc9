"""Run several calls at the same time, with a time limit."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from csi_multi.contract import StorageError
from csi_multi.contract.errors import NOT_FINAL

from .assertions import CheckFailed, expect
from .context import CheckContext
from .operations.base import describe_error

NamedCall = tuple[str, Callable[[], Any]]  # its name in messages, and the call

TIME_LIMIT = 60.0  # seconds for all of them together
SWITCH_INTERVAL = 1e-5  # seconds between two switches of Python's threads


@dataclass(frozen=True, slots=True)
class CallResult:
    label: str
    answer: Any = None
    error: Exception | None = None


def run_concurrently(calls: Sequence[NamedCall], seconds: float = 0.0) -> list[CallResult]:
    """Run these calls at the same time, each in a thread. Raises CheckFailed for one that does not return in time.

    The time is `seconds` for all together, or TIME_LIMIT if that is longer.
    """
    limit = max(seconds, TIME_LIMIT)
    barrier = threading.Barrier(len(calls))
    found: list[CallResult | None] = [None] * len(calls)

    def run(number: int, label: str, act: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            found[number] = CallResult(label, answer=act())
        except Exception as error:
            found[number] = CallResult(label, error=error)

    threads = [threading.Thread(target=run, args=(number, *act), daemon=True) for number, act in enumerate(calls)]
    with switching_often():
        for thread in threads:
            thread.start()
        ends = time.monotonic() + limit
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))
    hung = [label for (label, _), outcome in zip(calls, found, strict=True) if outcome is None]
    expect(not hung, f"{' and '.join(sorted(set(hung)))}: does not return within {limit:g} s")
    return [outcome for outcome in found if outcome]


@contextmanager
def switching_often() -> Iterator[None]:
    """During the block, Python's threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def expect_answers(t: CheckContext, outcomes: Sequence[CallResult], *allowed: type[StorageError]) -> list[Any]:
    """Return the answers. Raises CheckFailed for an error that is neither retryable nor of these classes."""
    wanted: tuple[type[StorageError], ...] = (*NOT_FINAL, *allowed)
    fine = tuple(t.client.kind_of(kind) for kind in wanted)
    for one in outcomes:
        if one.error and not isinstance(one.error, fine):
            names = ", ".join(kind.__name__ for kind in wanted)
            raise CheckFailed(
                f"{one.label}: raised {describe_error(one.error)}, the contract requires one of {names}"
            ) from one.error
    return [one.answer for one in outcomes if not one.error]
