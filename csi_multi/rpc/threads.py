"""Threads that run RPCs: all of them start before the first RPC is served.

gRPC starts a thread when an RPC comes and no thread is idle, in the one thread that serves all connections. Where that
fails (a limit of processes, of memory), its serving thread ends, and no RPC is answered any more.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


class ThreadsMissing(Exception):
    """The threads for RPCs cannot be started; the text says what to do."""


def started_pool(count: int, prefix: str) -> ThreadPoolExecutor:
    """Return a pool whose threads all run already. Raises ThreadsMissing."""
    pool = ThreadPoolExecutor(count, thread_name_prefix=prefix)
    together = threading.Barrier(count + 1)  # no thread takes a second job, so that every job starts one
    try:
        for _ in range(count):
            pool.submit(_meet, together)
        together.wait()
    except RuntimeError as error:
        together.abort()
        pool.shutdown(wait=False)
        raise ThreadsMissing(
            f"{count} threads for RPCs cannot be started ({error}); raise the limit of processes (pids) or memory, or "
            "lower driver.workers"
        ) from None
    return pool


def _meet(together: threading.Barrier) -> None:
    try:
        together.wait()
    except threading.BrokenBarrierError:
        return
