"""Threads that run RPCs: all of them start before the first RPC is served.

gRPC starts a thread when an RPC comes and no thread is idle, in the one thread that serves all connections. Where that
fails (a limit of processes, of memory), its serving thread ends, and no RPC is answered any more. If that thread ends
for any other reason, the process ends, so that a supervisor restarts it.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

log = logging.getLogger(__name__)


class ThreadsMissing(Exception):
    """The threads for RPCs cannot be started; the text says what to do."""


class StartedThreads(ThreadPoolExecutor):
    """An executor whose threads run from the beginning to the end of the process, or of this object.

    The thread that was idle last takes the next job: its memory is in the processor's caches, and the others need none.
    """

    def __init__(self, count: int, prefix: str) -> None:
        """Raises ThreadsMissing."""
        super().__init__(count, thread_name_prefix=prefix)
        self._queue = _JobQueue()
        weakref.finalize(self, self._queue.end)
        try:
            for number in range(count):
                name = f"{prefix}_{number}"
                threading.Thread(target=self._queue.work, args=(_Worker(),), name=name, daemon=True).start()
        except RuntimeError as error:
            self._queue.end()
            raise ThreadsMissing(
                f"{count} threads for RPCs cannot be started ({error}); raise the limit of processes (pids) or memory, "
                "or lower driver.workers"
            ) from None

    def end_with(self, owner: object) -> None:
        """End the threads, after what they run and what waits for them, when the owner is not used any more.

        This object itself may be in use for longer, by the traceback of an error.
        """
        weakref.finalize(owner, self._queue.end)

    def submit(self, function: Callable[..., Any], /, *words: Any, **fields: Any) -> Future[Any]:
        """Run the function in an idle thread; without one it waits, first come, first served."""
        future: Future[Any] = Future()
        self._queue.add(_Job(future, functools.partial(function, *words, **fields)))
        return future


@dataclass(slots=True)
class _Job:
    future: Future[Any]
    function: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.function())
        except BaseException as error:  # a thread that ended would be missing from then on
            self.future.set_exception(error)


class _Worker:
    """A thread, and the job that it gets while it is idle; None ends it."""

    def __init__(self) -> None:
        self.job: _Job | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class _JobQueue:
    """Idle threads and waiting jobs. The threads keep this alive, not their executor, whose end is theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._jobs: deque[_Job] = deque()
        self._ended = False

    def add(self, job: _Job) -> None:
        with self._lock:
            if not self._idle:
                self._jobs.append(job)
                return
            worker = self._idle.pop()
        worker.job = job
        worker.wake.release()

    def end(self) -> None:
        with self._lock:
            self._ended, idle = True, self._idle
            self._idle = []
        for worker in idle:
            worker.wake.release()

    def work(self, worker: _Worker) -> None:
        while job := self._next(worker):
            job.run()
            worker.job = job = None

    def _next(self, worker: _Worker) -> _Job | None:
        """Return the next job; wait for it. None: there are no more."""
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            if self._ended:
                return None
            self._idle.append(worker)
        worker.wake.acquire()
        return worker.job


class ServerStop:
    """A server that accepts no more RPCs, and ends after `grace` seconds those that still run."""

    def __init__(self, server: grpc.Server, grace: float) -> None:
        self._server = server
        self._end = time.monotonic() + grace
        self._ended: threading.Event | None = None
        try:
            self._ended = server.stop(grace)
        except RuntimeError:  # gRPC could not start its thread for `grace`, so who waits looks at the clock
            log.warning(
                "stopping: no thread can be started (limit of processes or memory); "
                "running RPCs are still ended at the time limit"
            )

    def wait(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether no RPC and no connection is left."""
        if self._ended:
            return self._ended.wait(seconds)
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            self._server.stop(None)
            return True
        return not self._server.wait_for_termination(min(seconds, remaining))

    def cut(self) -> None:
        """End all connections, also those whose callers do not take the responses."""
        try:
            self._server.stop(0)
        except RuntimeError:
            self._end = time.monotonic()


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
