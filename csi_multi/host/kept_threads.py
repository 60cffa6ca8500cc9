"""Threads that are kept for the next short call, because to start one takes longer than most calls do.

A thread that a call leaves hanging is not kept: another one takes the next call.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

IDLE = "idle, kept"  # the name of a thread without a call
KEPT = 16  # idle threads; more are needed only while as many calls run at once


class _KeptThread:
    """A thread, and the call that it gets while it is idle."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name = name
        self.call: Callable[[], object] | None = call
        self.wake = threading.Lock()
        self.wake.acquire()


_lock = threading.Lock()
_idle: list[_KeptThread] = []  # the one that was busy last, last: its memory is in the processor's caches


def run(name: str, call: Callable[[], object]) -> None:
    """Run a call, which raises nothing, in a thread of this name. Raises RuntimeError when none can be started."""
    with _lock:
        worker = _idle.pop() if _idle else None
    if worker is None:
        threading.Thread(target=_work, args=(_KeptThread(name, call),), name=name, daemon=True).start()
        return
    worker.name, worker.call = name, call
    worker.wake.release()


def _work(worker: _KeptThread) -> None:
    own = threading.current_thread()
    while worker.call:
        own.name = worker.name
        contextvars.Context().run(worker.call)  # as in a new thread
        own.name, worker.call = IDLE, None
        with _lock:
            if len(_idle) >= KEPT:
                return
            _idle.append(worker)
        worker.wake.acquire()
