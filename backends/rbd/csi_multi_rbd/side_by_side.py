"""Two commands at the same time, where neither needs what the other says."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Return what both return. Waits for both, then raises the error of the first, or of the second."""
    future: Future[B] = Future()
    context = contextvars.copy_context()  # what is recorded about the command belongs to the request
    thread = threading.Thread(target=context.run, args=(_settle, future, second), name="rbd-beside", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started: one after the other takes longer, and no more
        return first(), second()
    try:
        one = first()
    finally:
        thread.join()
    return one, future.result()


def _settle(future: Future[B], act: Callable[[], B]) -> None:
    try:
        future.set_result(act())
    except BaseException as error:
        future.set_exception(error)
