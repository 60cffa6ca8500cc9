"""Keep commands from piling up before a cluster that does not answer, or that answers slowly.

A command that waits for a dead cluster holds a thread of the driver for seconds, and a retry the next one.
So once the monitors are found unreachable the others are refused at once, but for one attempt every few
seconds; the first answer, of whatever kind, opens the gate. And only so many commands run at once: more
need more memory, and are not done sooner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from csi_multi.contract import PermissionDenied, StorageError, Timeout, Unavailable

from .statuses import Full, Refused, Unreachable

RETRY = 5.0  # seconds between attempts while it is closed
SLOW = 5.0  # seconds: a command that timed out sooner says nothing about the cluster
AT_ONCE = 16  # commands, of 30 MB each; 64 creations take 3.4 s with 16 at once, 3.3 with 64, 3.8 with 8, 4.8 with 4
IN_A_ROW = 2  # commands that are slow one after the other close the gate


class Gate:
    """One cluster's. Thread-safe."""

    def __init__(self, *, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._room = threading.BoundedSemaphore(at_once)
        self._clock = clock
        self._guard = threading.Lock()
        self._why = ""  # "": open
        self._kind: type[StorageError] = Unreachable
        self._since = 0.0
        self._next = 0.0  # when the next attempt may begin
        self._trying = False
        self._slow = 0  # commands in a row

    @contextmanager
    def through(self, patience: float, *, crowded: bool = True, telling: bool = True) -> Iterator[None]:
        """Let one command through. Raises Unreachable while the cluster does not answer, Unavailable in a crowd.

        `crowded`: whether it counts among those that run at once; what takes hours does not.
        `telling`: whether it says something about the cluster that it takes too long.
        """
        self._check()  # before waiting for room as well: nobody waits for a closed gate
        if crowded and not self._room.acquire(timeout=patience):
            raise Unavailable(f"too many commands of this instance have been running, for {patience:g} s; try again")
        try:
            with self._watched(telling):
                yield
        finally:
            if crowded:
                self._room.release()

    @contextmanager
    def _watched(self, telling: bool) -> Iterator[None]:
        attempt = self._enter()
        started = self._clock()
        try:
            yield
        except StorageError as error:
            self._learn(error, self._clock() - started, telling)
            raise
        else:
            self._learn(None, 0, telling)
        finally:
            if attempt:
                with self._guard:
                    self._trying = False

    def _check(self) -> None:
        with self._guard:
            self._refuse()

    def _enter(self) -> bool:
        """Return whether this is the attempt that a closed gate lets through. Raises Unreachable."""
        with self._guard:
            self._refuse()
            self._trying = bool(self._why)
            return self._trying

    def _refuse(self) -> None:
        now = self._clock()
        if self._why and (self._trying or now < self._next):
            raise self._kind(f"{self._why}; so for {now - self._since:.0f} s, and not tried again so soon")

    def _learn(self, error: StorageError | None, seconds: float, telling: bool) -> None:
        silent = isinstance(error, Unreachable | Full) and error.silent
        slow = telling and isinstance(error, Timeout) and seconds >= SLOW
        answered = error is None or isinstance(error, Refused | PermissionDenied)
        with self._guard:
            self._slow = self._slow + 1 if slow else 0 if answered else self._slow
            if answered:
                self._why = ""
            elif silent or self._slow >= IN_A_ROW:
                if not self._why:
                    self._since = self._clock() - seconds
                self._why = str(error)
                self._kind = Full if isinstance(error, Full) else Unreachable
                self._next = self._clock() + RETRY
