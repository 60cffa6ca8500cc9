"""How many threads the RPCs of one instance (or of one node of the cluster) may hold, so that a hanging one leaves
threads for the others.

An RPC that calls a backend counts against the limit of its instance until it ends, also while the core
works for it (mkfs on a device that hangs) and while it streams. An RPC over several instances counts
against one of them at a time.

An instance may take one more slot only while it holds no more slots than are free: one hanging instance gets
half of a kind of slots, the next one half of the rest, and so on. An instance that shares the driver with no
other gets all of them. Fixed shares would stay unused with many instances, or all be taken when many hang.
Above its share an RPC is refused, never queued, and before it has done anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..contract.errors import Unavailable

HANGING_AFTER = 10.0  # seconds; an RPC over all instances does not join one of its kind that waits for longer


class SlotPool:
    """How many RPCs of one cost may run at once in this process."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self.total = total
        self.free = total

    def take(self) -> bool:
        """Take a slot; return False when none is free."""
        with self._lock:
            taken = self.free > 0
            self.free -= taken
            return taken

    def release(self) -> None:
        """Give a slot back."""
        with self._lock:
            self.free += 1


class RunningRpc:
    """An RPC that holds a slot, and the instance or node it counts against at the moment."""

    def __init__(self, rpc: str, slots: SlotPool, all_instances: bool) -> None:
        self.rpc = rpc
        self.slots = slots
        self.all_instances = all_instances  # it goes from instance to instance
        self.since = 0.0
        self._limit: AdmissionLimit | None = None

    def enter(self, limit: AdmissionLimit) -> None:
        """Count against this limit from now on. Raises Unavailable when its share of the slots is taken."""
        if limit is not self._limit:
            self.leave()
            limit.admit(self)
            self._limit = limit

    def leave(self) -> None:
        """Count against no limit any more."""
        if self._limit:
            self._limit.release(self)
            self._limit = None


class AdmissionLimit:
    """The share of one instance, or of one node that RPCs are forwarded to."""

    def __init__(self, name: str, unshared: bool, kind: str = "backend") -> None:
        """`unshared`: nothing else needs a slot, so there is no limit."""
        self._name = f"{kind} {name!r}"
        self._others = f"{kind}s"
        self.unshared = unshared
        self._lock = threading.Lock()
        self._admitted: dict[RunningRpc, None] = {}  # oldest first

    def admit(self, rpc: RunningRpc) -> None:
        """Count an RPC. Raises Unavailable above the share."""
        now = time.monotonic()
        with self._lock:
            held = [one for one in self._admitted if one.slots is rpc.slots]
            hanging = rpc.all_instances and any(one.rpc == rpc.rpc and now - one.since > HANGING_AFTER for one in held)
            if self.unshared or (len(held) <= rpc.slots.free and not hanging):
                rpc.since = now
                self._admitted[rpc] = None
                return
        oldest = held[0]
        raise Unavailable(
            f"{self._name} has {len(held)} running {'RPC' if len(held) == 1 else 'RPCs'}, the oldest of them "
            f"{oldest.rpc} for {now - oldest.since:.1f} s; the remaining threads are reserved for other "
            f"{self._others}; try again"
        )

    def release(self, rpc: RunningRpc) -> None:
        with self._lock:
            del self._admitted[rpc]

    def running_rpcs(self) -> list[str]:
        """Return what runs, oldest first, for example "CreateVolume for 3.1 s"."""
        now = time.monotonic()
        with self._lock:
            return [f"{one.rpc} for {now - one.since:.1f} s" for one in self._admitted]


RUNNING_RPC: ContextVar[RunningRpc | None] = ContextVar("RUNNING_RPC", default=None)


@contextmanager
def running_rpc(name: str, slots: SlotPool, all_instances: bool) -> Iterator[None]:
    """Count the backend calls of this thread as calls of this RPC."""
    rpc = RunningRpc(name, slots, all_instances)
    token = RUNNING_RPC.set(rpc)
    try:
        yield
    finally:
        rpc.leave()
        RUNNING_RPC.reset(token)
