"""Threads that run RPCs: all of them start before the first RPC is served.

gRPC starts a thread when an RPC comes and no thread is idle, in the one thread that serves all connections. Where that
fails (a limit of processes, of memory), its serving thread ends, and no RPC is answered any more. If that thread ends
for any other reason, the process ends, so that a supervisor restarts it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc

log = logging.getLogger(__name__)

Wait = Callable[[float], bool]  # wait at most so many seconds; return whether what is waited for has happened


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


def stop(server: grpc.Server, grace: float) -> Wait:
    """Accept no more RPCs, and end after `grace` seconds those that still run. Return how to wait for that."""
    try:
        ended: threading.Event = server.stop(grace)
        return ended.wait
    except RuntimeError:  # gRPC could not start its thread for `grace`, so who waits looks at the clock
        log.warning("stopping without a thread for the time limit, because none can be started")
    end = time.monotonic() + grace

    def wait(seconds: float) -> bool:
        remaining = end - time.monotonic()
        if remaining <= 0:
            server.stop(None)
            return True
        return not server.wait_for_termination(min(seconds, remaining))

    return wait


def exit_with_serving_thread(args: threading.ExceptHookArgs) -> None:
    """Log the error that ended a thread; end the process, too, if gRPC answers no RPC without the thread.

    For threading.excepthook. The end is as safe as SIGKILL.
    """
    name = args.thread.name if args.thread else "unknown"
    serving = any(
        frame.f_globals.get("__name__") == "grpc._server" for frame, _ in traceback.walk_tb(args.exc_traceback)
    )
    error = args.exc_value or args.exc_type()
    text = "".join(traceback.format_exception(error))
    what = "no RPC can be answered without it, so the driver ends" if serving else "the driver serves without it"
    log.error("thread %s has failed: %s", name, what, extra={"fields": {"traceback": text}})
    if serving:
        logging.shutdown()
        os._exit(1)
