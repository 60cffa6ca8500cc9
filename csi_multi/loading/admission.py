"""How many threads the RPCs of one instance (or of one node of the cluster) may hold, so that a hanging one leaves
threads for the others.

An RPC that calls a backend counts against the limit of its instance until it ends, also while the core
works for it (mkfs on a device that hangs) and while it streams. An RPC over several instances counts
against one of them at a time.

An instance may take one more slot only while it holds no more slots than are free: one hanging instance gets
half of a kind of slots, the next one half of the rest, and so on. An instance that shares the driver with no
other gets all of them. Fixed shares would stay unused with many instances, or all be taken when many hang.

Above its share an RPC waits for a slot, oldest first, until its deadline or WAIT_LIMIT: a burst is served, only later.
An instance of which no RPC has ended for HANGING_AFTER seconds is cut off: those RPCs are refused at once. RPCs of an
instance that none has ended of for MOVING seconds may use half of the places to wait in, which the others leave free.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import takewhile

from ..contract.errors import Unavailable

HANGING_AFTER = 10.0  # seconds without the end of an RPC, after which an instance with a full share is cut off
MOVING = 1.0  # seconds without the end of an RPC, after which an instance does not get all places to wait in
WAIT_LIMIT = 60.0  # seconds that an RPC without a nearer deadline waits for a slot
RECHECK = 0.5  # seconds between two checks whether to wait on


class RunningRpc:
    """An RPC that holds a slot or waits for one, and the instance or node it counts against at the moment."""

    def __init__(self, rpc: str, slots: SlotPool, all_instances: bool, deadline: float | None = None) -> None:
        """`deadline` is in time.monotonic(); None: there is none."""
        self.rpc = rpc
        self.slots = slots
        self.all_instances = all_instances  # it goes from instance to instance
        self.since = 0.0
        self.wait_until = min(time.monotonic() + WAIT_LIMIT, deadline or float("inf"))
        self.has_slot = False
        self._limit: AdmissionLimit | None = None

    def begin(self) -> None:
        """Wait for a slot. Raises Unavailable."""
        self.slots.acquire(self, None)

    def enter(self, limit: AdmissionLimit) -> None:
        """Count against this limit from now on; wait above its share. Raises Unavailable when it is cut off."""
        if limit is not self._limit:
            self._leave_limit()
            self.slots.acquire(self, limit)
            self._limit = limit

    def leave(self) -> None:
        """Give the slot back, and count against no limit any more."""
        self._leave_limit()
        self.slots.release(self)

    def _leave_limit(self) -> None:
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
        self._held: Counter[SlotPool] = Counter()
        self._ended_at: dict[SlotPool, float] = {}  # when an RPC last left

    def admit(self, rpc: RunningRpc) -> bool:
        """Count an RPC if the share has room; the slot that it would take is still free."""
        with self._lock:
            if not self.unshared and self._held[rpc.slots] > rpc.slots.free - 1:
                return False
            rpc.since = time.monotonic()
            self._admitted[rpc] = None
            self._held[rpc.slots] += 1
            return True

    def release(self, rpc: RunningRpc) -> None:
        with self._lock:
            del self._admitted[rpc]
            self._held[rpc.slots] -= 1
            self._ended_at[rpc.slots] = time.monotonic()

    def is_hanging(self, rpc: RunningRpc) -> bool:
        """Whether this RPC must not wait here, because none of those that run has ended for long."""
        now = time.monotonic()
        with self._lock:
            running = [one for one in self._admitted if one.slots is rpc.slots]
            if rpc.all_instances and any(one.rpc == rpc.rpc and now - one.since > HANGING_AFTER for one in running):
                return True
            full = not self.unshared and len(running) > rpc.slots.free - 1
            return bool(full and running) and now - self._moved_at(rpc.slots) > HANGING_AFTER

    def is_moving(self, slots: SlotPool) -> bool:
        """Whether an RPC has ended lately, or those that run have begun lately."""
        with self._lock:
            return self.unshared or time.monotonic() - self._moved_at(slots) < MOVING

    def _moved_at(self, slots: SlotPool) -> float:
        oldest = next((one.since for one in self._admitted if one.slots is slots), time.monotonic())
        return max(oldest, self._ended_at.get(slots, 0.0))

    def refusal(self, rpc: RunningRpc) -> Unavailable:
        """Return the error for an RPC that may not wait any longer."""
        now = time.monotonic()
        with self._lock:
            held = [one for one in self._admitted if one.slots is rpc.slots]
        oldest = f", the oldest of them {held[0].rpc} for {now - held[0].since:.1f} s" if held else ""
        return Unavailable(
            f"{self._name} has {len(held)} running {'RPC' if len(held) == 1 else 'RPCs'}{oldest}; the remaining "
            f"threads are reserved for other {self._others}; try again"
        )

    def running_rpcs(self) -> list[str]:
        """Return what runs, oldest first, for example "CreateVolume for 3.1 s"."""
        now = time.monotonic()
        with self._lock:
            return [f"{one.rpc} for {now - one.since:.1f} s" for one in self._admitted]


class WaitingRpc:
    """An RPC in the queue for a slot."""

    def __init__(self, rpc: RunningRpc, limit: AdmissionLimit | None) -> None:
        self.rpc = rpc
        self.limit = limit
        self.admitted = threading.Event()


class SlotPool:
    """How many RPCs of one cost may run at once in this process (`total`), and how many more may wait (`places`)."""

    def __init__(self, total: int, places: int = 0, cost: str = "") -> None:
        self._lock = threading.Lock()
        self.total = total
        self.free = total
        self.places = places
        self._cost = cost
        self._queue: dict[WaitingRpc, None] = {}  # oldest first
        self._full_since = 0.0  # when the last free slot was last taken

    @property
    def waiting(self) -> int:
        """How many RPCs wait for a slot."""
        return len(self._queue)

    def acquire(self, rpc: RunningRpc, limit: AdmissionLimit | None) -> None:
        """Give the RPC a slot under this limit (None: it is not known yet); wait if necessary. Raises Unavailable."""
        refuse_first = limit is not None and rpc.all_instances and limit.is_hanging(rpc)
        with self._lock:
            if rpc.has_slot:
                self._free_slot(rpc)
            if not refuse_first and self._admit(rpc, limit):
                self._admit_waiting()
                return
            one = WaitingRpc(rpc, limit)
            if may_wait := not refuse_first and self._may_wait(one):
                self._queue[one] = None
            self._admit_waiting()
        if not may_wait:
            raise self._refusal(one)
        self._wait(one)

    def release(self, rpc: RunningRpc) -> None:
        """Take the slot back, if the RPC has one."""
        with self._lock:
            if rpc.has_slot:
                self._free_slot(rpc)
            self._admit_waiting()

    def _wait(self, one: WaitingRpc) -> None:
        while not one.admitted.wait(min(RECHECK, max(one.rpc.wait_until - time.monotonic(), 0))):
            late = time.monotonic() >= one.rpc.wait_until
            with self._lock:
                if one.admitted.is_set():
                    return
                if not late and self._may_wait(one):
                    continue
                del self._queue[one]
            raise self._refusal(one)

    def _may_wait(self, one: WaitingRpc) -> bool:
        """Whether the RPC may wait (on): what it waits for does not hang, and it takes no place of the others."""
        if not self.places or self._is_hanging(one):
            return False
        if one.limit is None or one.limit.is_moving(self):
            return True
        older = [*takewhile(lambda other: other is not one, self._queue)]
        others = sum(other.limit is not one.limit for other in self._queue)
        return sum(other.limit is one.limit for other in older) < (self.places - others) / 2

    def _is_hanging(self, one: WaitingRpc) -> bool:
        """Whether what the RPC waits for hangs: its instance or node, or all that have slots."""
        if one.limit:
            return one.limit.is_hanging(one.rpc)
        return self.free <= 0 and time.monotonic() - self._full_since > HANGING_AFTER

    def _admit(self, rpc: RunningRpc, limit: AdmissionLimit | None) -> bool:
        if self.free <= 0 or not (limit is None or limit.admit(rpc)):
            return False
        self.free -= 1
        if not self.free:
            self._full_since = time.monotonic()
        rpc.has_slot = True
        return True

    def _free_slot(self, rpc: RunningRpc) -> None:
        rpc.has_slot = False
        self.free += 1

    def _admit_waiting(self) -> None:
        """Admit as many as possible, oldest first."""
        full: set[AdmissionLimit | None] = set()
        for one in [*self._queue] if self._queue else ():
            if self.free <= 0:
                return
            if one.limit not in full and self._admit(one.rpc, one.limit):
                del self._queue[one]
                one.admitted.set()
            else:
                full.add(one.limit)

    def _refusal(self, one: WaitingRpc) -> Unavailable:
        if one.limit:
            return one.limit.refusal(one.rpc)
        return Unavailable(f"all threads for {self._cost} RPCs are busy; try again")


RUNNING_RPC: ContextVar[RunningRpc | None] = ContextVar("RUNNING_RPC", default=None)


@contextmanager
def running_rpc(name: str, slots: SlotPool, all_instances: bool, deadline: float | None = None) -> Iterator[None]:
    """Hold a slot, and count the backend calls of this thread as calls of this RPC. Raises Unavailable."""
    rpc = RunningRpc(name, slots, all_instances, deadline)
    rpc.begin()
    token = RUNNING_RPC.set(rpc)
    try:
        yield
    finally:
        RUNNING_RPC.reset(token)
        rpc.leave()
