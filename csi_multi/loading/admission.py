"""How much of the thread pool the RPCs of one instance (or one node) may hold, so that one that hangs leaves room.

An RPC that calls into an instance holds a place there until it ends, also while the core works for it
(mkfs on a device that hangs) and while it streams; over several instances it is in one at a time.

An instance may hold a place more only while it holds no more than are free: one that hangs gets half
of a kind of slots, the next half of the rest, and so on, and an instance that is alone gets all. A
fixed share would be idle with many instances, or not be there with many that hang. Above its share an
RPC is refused, never queued, and before it has done anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..contract.errors import Unavailable

HANGING_AFTER = 10.0  # seconds after which an RPC over all instances is not sent after one that waits in an instance


class SlotPool:
    """So many RPCs of one cost may run at once."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self.total = total
        self.free = total

    def take(self) -> bool:
        with self._lock:
            taken = self.free > 0
            self.free -= taken
            return taken

    def leave(self) -> None:
        with self._lock:
            self.free += 1


class RunningRpc:
    """An RPC, and the room of the instance it is in."""

    def __init__(self, rpc: str, slots: SlotPool, everywhere: bool) -> None:
        self.rpc = rpc
        self.slots = slots
        self.everywhere = everywhere  # it goes from instance to instance
        self.since = 0.0
        self._room: AdmissionLimit | None = None

    def enter(self, room: AdmissionLimit) -> None:
        """Move to an instance. Raises Unavailable when its share of the slots is taken."""
        if room is not self._room:
            self.leave()
            room.admit(self)
            self._room = room

    def leave(self) -> None:
        if self._room:
            self._room.release(self)
            self._room = None


class AdmissionLimit:
    """The places of one instance, or of one node that RPCs are sent on to."""

    def __init__(self, name: str, alone: bool, kind: str = "backend") -> None:
        self._name = f"{kind} {name!r}"
        self._others = f"{kind}s"
        self.alone = alone
        self._lock = threading.Lock()
        self._inside: dict[RunningRpc, None] = {}  # oldest first

    def admit(self, visit: RunningRpc) -> None:
        now = time.monotonic()
        with self._lock:
            held = [one for one in self._inside if one.slots is visit.slots]
            late = visit.everywhere and any(one.rpc == visit.rpc and now - one.since > HANGING_AFTER for one in held)
            if self.alone or (len(held) <= visit.slots.free and not late):
                visit.since = now
                self._inside[visit] = None
                return
        oldest = held[0]
        raise Unavailable(
            f"{self._name} has {len(held)} calls running, the oldest of which, {oldest.rpc}, for "
            f"{now - oldest.since:.1f} s; the other {self._others} need the rest of the threads; try again"
        )

    def release(self, visit: RunningRpc) -> None:
        with self._lock:
            del self._inside[visit]

    def running(self) -> list[str]:
        """Say what runs in the instance, oldest first."""
        now = time.monotonic()
        with self._lock:
            return [f"{one.rpc} for {now - one.since:.1f} s" for one in self._inside]


RUNNING_RPC: ContextVar[RunningRpc | None] = ContextVar("VISIT", default=None)


@contextmanager
def running_rpc(rpc: str, slots: SlotPool, everywhere: bool) -> Iterator[None]:
    """Let what is called in this thread count as this RPC."""
    visit = RunningRpc(rpc, slots, everywhere)
    token = RUNNING_RPC.set(visit)
    try:
        yield
    finally:
        visit.leave()
        RUNNING_RPC.reset(token)
