"""Two calls of two processes, of which one is paused at its calls to the storage, one after the other.

The other call is made to its end meanwhile: it succeeds, or it is refused. Where it waits for the paused one (a lock on
the storage), the paused one goes on. Both run in this process, with a backend object each: they share only the storage.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from .assertions import CheckFailed, CheckSkipped, expect
from .concurrency import TIME_LIMIT, CallResult
from .context import CheckContext
from .counting import expect_nothing_left
from .fault_injection import Fault, FaultInjector
from .fault_sweep import call_text
from .in_process import InProcessClient
from .short_transfers import COPY_CALLS, short_copies

MOST = 16  # pauses of a call, evenly spread over its calls to the storage
FEWEST = 2  # however slow the storage is
SECONDS = 6.0  # in which more of them are made
BLOCKED_SECONDS = 0.1  # after which a thread that only sleeps counts as one that waits for the other
BUSY_SHARE = 0.1  # of a processor: a thread that uses more does not only wait
LONGEST = 10.0  # seconds for which a call is paused


class Encounter(ABC):
    """Two calls of two processes, on resources that are made anew for each pause."""

    methods: tuple[str, str]  # of the first and the second call, for messages
    both: ClassVar[bool] = True  # whether the second call is paused too, while the first one is made

    def __init__(self, t: CheckContext, other: InProcessClient) -> None:
        self.t = t
        self.other = other  # the client of the second process

    def renew(self) -> None:  # noqa: B027 - optional on purpose
        """Replace what all pauses share if it does not allow one more."""

    @abstractmethod
    def prepare(self) -> None:
        """Create what the two calls need."""

    @abstractmethod
    def first(self) -> Any:
        """Make the first call. It is the same each time until the next `prepare`, and so is the second one."""

    @abstractmethod
    def second(self) -> Any:
        """Make the second call, as another process."""

    @abstractmethod
    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        """Require what must hold after both, and delete everything."""

    def release(self) -> None:  # noqa: B027 - optional on purpose
        """Close what the calls have left open, also after a failure."""


@contextmanager
def second_process(t: CheckContext) -> Iterator[InProcessClient]:
    """Yield a client that shares only the storage. Its calls can be paused like those of the first one."""
    other = InProcessClient(t.storage, t.injector)
    try:
        yield other
    finally:
        other.close()


def expect_order(encounter: Encounter) -> None:
    """Pause each of the two calls, if `both`, at its calls to the storage, and make the other one meanwhile."""
    t, (first, second) = encounter.t, encounter.methods
    with short_copies(), t.injector.around(COPY_CALLS):
        counts = {first: _pause(encounter, turned=False)}
        if encounter.both:
            counts[second] = _pause(encounter, turned=True)
    if not any(counts.values()):
        raise CheckSkipped(
            f"{' and '.join(counts)}: no call through the boundary was recorded; "
            "name the calls in Storage.calls or Storage.files"
        )
    for (method, count), beside in zip(counts.items(), (second, first), strict=False):
        t.note(f"{method} paused {count} times beside {beside}")


def _pause(encounter: Encounter, *, turned: bool) -> int:
    """Return how often a call was paused: the first one, or, turned, the second one."""
    ends, count = time.monotonic() + SECONDS, 0
    for point in _points(encounter.t, _record(encounter, turned)):
        if count >= FEWEST and not encounter.t.storage.complete and time.monotonic() > ends:
            break
        _run(encounter, turned, point)
        count += 1
    return count


def _record(encounter: Encounter, turned: bool) -> list[str]:
    """Make one call after the other; return the calls to the storage of that which is to be paused."""
    _run(encounter, turned, 0)
    return encounter.t.injector.calls


def _points(t: CheckContext, calls: list[str]) -> list[int]:
    """Return the numbers of the calls at which to pause, from 1. Wherever one ends, they are spread over all calls.

    Those that change something, and the next one: what was begun goes on in the storage while it is only looked at.
    """
    changes = [not call.startswith(t.storage.read_only_calls) for call in calls]
    after = [False, *changes]
    found = [number for number, change in enumerate(changes, 1) if change or after[number - 1]]
    found = found or list(range(1, len(calls) + 1))
    count = min(MOST, len(found))
    spread = [found[place * len(found) // count] for place in range(count)]
    return [number for start in (2, 0, 3, 1) for number in spread[start::4]]


def _run(encounter: Encounter, turned: bool, point: int) -> None:
    """Make both calls on new resources: pause one at this call to the storage, 0: make one after the other."""
    t = encounter.t
    encounter.renew()
    before = t.resources()
    acts = list(zip(encounter.methods, (encounter.first, encounter.second), strict=True))
    (method, act), (beside, other) = reversed(acts) if turned else acts
    try:
        encounter.prepare()
        meanwhile = OtherCall(t.injector, beside, other)
        with t.injector.inject(point, Fault.PAUSE, meanwhile=meanwhile.make):
            paused = result_of(method, act)
        meanwhile.make()
        made = meanwhile.result()
        what = f"{method}, then {beside} by another process"
        if point and t.injector.reached:
            text = call_text(t.injector, point)
            what = f"{method}, paused before call {point} ({text}) while another process made {beside}"
        encounter.verify(*((made, paused) if turned else (paused, made)), what)
    finally:
        encounter.release()
    expect_nothing_left(t, before, f"{what}, then everything was deleted")


def result_of(label: str, act: Callable[[], Any]) -> CallResult:
    try:
        return CallResult(label, answer=act())
    except CheckFailed:
        raise
    except Exception as error:
        return CallResult(label, error=error)


class OtherCall:
    """The call that is made while the other one is paused."""

    def __init__(self, injector: FaultInjector, method: str, act: Callable[[], Any]) -> None:
        self._injector = injector
        self._method = method
        self._act = act
        self._found: CallResult | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def make(self) -> None:
        """Make it, once; return when it has ended, or waits for something."""
        if self._thread.ident is None:
            self._thread.start()
            self._wait()

    def result(self) -> CallResult:
        """Raises CheckFailed when it does not end, though the other one has ended."""
        self._thread.join(TIME_LIMIT)
        expect(not self._thread.is_alive(), f"{self._method}: does not return within {TIME_LIMIT:g} s")
        if isinstance(self._found, CallResult):
            return self._found
        assert self._found
        raise self._found

    def _run(self) -> None:
        try:
            self._found = result_of(self._method, self._act)
        except BaseException as error:
            self._found = error

    def _wait(self) -> None:
        started = time.monotonic()
        seen, since = self._sleep(), started
        while self._thread.is_alive() and time.monotonic() - started < LONGEST:
            self._thread.join(BLOCKED_SECONDS / 10)
            now, elapsed = self._sleep(), time.monotonic() - since
            if not (now and seen and now.goes_on(seen, elapsed)):
                seen, since = now, time.monotonic()
            elif elapsed >= BLOCKED_SECONDS:
                return

    def _sleep(self) -> _Sleep | None:
        """Return how the thread sleeps; None while it runs, has ended, or the storage is at work for it."""
        assert self._thread.ident
        if self._injector.is_answering(self._thread.ident):
            return None
        task = Path(f"/proc/self/task/{self._thread.native_id}")
        try:
            status = dict(line.split(":", 1) for line in task.joinpath("status").read_text().splitlines())
            seconds = int(task.joinpath("schedstat").read_text().split()[0]) / 1e9
        except OSError:
            return None
        state = status["State"].strip()[0]
        switches = status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"]
        return _Sleep(state == "D", seconds, switches) if state in "SD" else None


@dataclass(frozen=True, slots=True)
class _Sleep:
    """A thread that sleeps."""

    in_kernel: bool  # it waits for a disk, or for a filesystem that is frozen
    seconds: float  # of the processor that it has used
    switches: str  # how often it has slept

    def goes_on(self, before: _Sleep, elapsed: float) -> bool:
        """Whether it has done nothing since, except for looking again whether it may go on."""
        if self.in_kernel or before.in_kernel:
            return self.switches == before.switches
        return self.seconds - before.seconds <= BUSY_SHARE * elapsed
