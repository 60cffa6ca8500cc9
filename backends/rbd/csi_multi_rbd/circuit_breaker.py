"""A circuit breaker per cluster: commands do not pile up while the cluster is unreachable or slow.

A command that waits for a dead cluster holds a thread of the driver for seconds, and its retry holds the next one.
Once the monitors are found unreachable, other commands are refused at once, except one attempt every few seconds; the
first answer of any kind closes the circuit again. Also limits how many commands run at once: more of them need more
memory and do not finish sooner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from csi_multi.contract import PermissionDenied, StorageError, Timeout, Unavailable

from .errors import CephCommandFailed, ClusterUnreachable, PoolFull
from .full_pool import FullPool

RETRY = 5.0  # seconds between attempts while the circuit is open
SLOW = 5.0  # seconds: a command that timed out sooner says nothing about the cluster
AT_ONCE = 16  # commands, of 30 MB each; 64 creations take 3.4 s with 16 at once, 3.3 with 64, 3.8 with 8, 4.8 with 4
IN_A_ROW = 2  # consecutive slow commands that open the circuit


class CircuitBreaker:
    """The circuit breaker of one cluster. Thread-safe."""

    def __init__(self, *, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self.full_pool = FullPool(clock)
        self._slots = threading.BoundedSemaphore(at_once)
        self._clock = clock
        self._lock = threading.Lock()
        self._reason = ""  # "": the circuit is closed, commands run
        self._error: type[StorageError] = ClusterUnreachable
        self._since = 0.0
        self._next_attempt = 0.0
        self._attempting = False
        self._slow_in_a_row = 0

    @property
    def is_open(self) -> bool:
        """Whether the last answer is missing."""
        with self._lock:
            return bool(self._reason)

    @contextmanager
    def command(self, max_wait: float, *, limited: bool = True, timed: bool = True) -> Iterator[None]:
        """Run one command in the block.

        `limited`: it counts among those that run at once; one that takes hours does not. `timed`: if it takes long,
        that says something about the cluster. Raises ClusterUnreachable or PoolFull while the circuit is open,
        Unavailable when no slot becomes free.
        """
        self._check()  # before waiting for a slot: no command waits while the circuit is open
        if limited and not self._slots.acquire(timeout=max_wait):
            raise Unavailable(
                f"the limit of commands that run at once was reached for {max_wait:g} s: the cluster is slow or the "
                "driver has too many requests; try again"
            )
        try:
            with self._observed(timed):
                yield
        finally:
            if limited:
                self._slots.release()

    @contextmanager
    def _observed(self, timed: bool) -> Iterator[None]:
        attempt = self._enter()
        started = self._clock()
        try:
            yield
        except StorageError as error:
            self._record(error, self._clock() - started, timed)
            raise
        else:
            self._record(None, 0, timed)
        finally:
            if attempt:
                with self._lock:
                    self._attempting = False

    def _check(self) -> None:
        with self._lock:
            self._refuse_if_open()

    def _enter(self) -> bool:
        """Return whether this command is the attempt that an open circuit allows. Raises ClusterUnreachable."""
        with self._lock:
            self._refuse_if_open()
            self._attempting = bool(self._reason)
            return self._attempting

    def _refuse_if_open(self) -> None:
        now = self._clock()
        if self._reason and (self._attempting or now < self._next_attempt):
            raise self._error(
                f"{self._reason}; this has lasted {now - self._since:.0f} s, and the cluster is tried again every "
                f"{RETRY:g} s"
            )

    def _record(self, error: StorageError | None, seconds: float, timed: bool) -> None:
        silent = isinstance(error, ClusterUnreachable | PoolFull) and error.silent
        slow = timed and isinstance(error, Timeout) and seconds >= SLOW
        answered = error is None or isinstance(error, CephCommandFailed | PermissionDenied)
        with self._lock:
            self._slow_in_a_row = self._slow_in_a_row + 1 if slow else 0 if answered else self._slow_in_a_row
            if answered:
                self._reason = ""
            elif silent or self._slow_in_a_row >= IN_A_ROW:
                if not self._reason:
                    self._since = self._clock() - seconds
                self._reason = str(error)
                self._error = PoolFull if isinstance(error, PoolFull) else ClusterUnreachable
                self._next_attempt = self._clock() + RETRY
