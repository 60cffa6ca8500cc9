"""resume() ends what several crashed calls left, beside something that it cannot or must not touch.

The names of what was left come before and after those of the obstacle: one that ends the work for all that follow is
found. What resume() leaves to the repeated request is known from the same crashes without an obstacle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, same
from ..check import check
from ..concurrency import CallResult
from ..context import CheckContext
from ..counting import added_since, expect_nothing_left
from ..damaged_files import damages
from ..damaged_records import new_records
from ..fault_injection import Fault
from ..fault_sweep import FaultSweep, restart_process, run_with_fault
from ..in_process import InProcessClient
from ..interleaving import Encounter, OtherCall, expect_order, result_of, second_process
from ..operations.base import Operation, attempt, describe_error, expect_not_found, retry
from ..operations.change import DeleteGroupSnapshot, DeleteOperation, DeleteSnapshot, DeleteVolume
from ..operations.create import CreateOperation, CreateVolume
from ..protocol import Target
from .after_crash import creations
from .foreign import expect_present, put_foreign

PREFIXES = ("0-", "zz-")  # of names that come before and after all others
MOST = 2  # deaths of an operation that are tried beside an obstacle, each under names of both kinds


@dataclass(frozen=True, slots=True)
class ResumedDeath:
    """What resume() does after a death, where nothing is in its way."""

    operation: Operation
    call: int  # of the death
    before: int  # resources of the operation that are there after the death
    after: int  # and after resume()


class Obstacle(ABC):
    """What is in the way of resume(), made before anything is left."""

    words: ClassVar[str]

    def __init__(self, t: CheckContext) -> None:
        self.t = t

    @abstractmethod
    def resume(self, another: Operation, call: int) -> Exception | None:
        """Call resume() beside the obstacle, which may be this operation, paused at the call; return its error."""

    def verify(self) -> None:  # noqa: B027 - optional on purpose
        """Require what must hold of the obstacle."""


class ForeignThings(Obstacle):
    words = "what belongs to others"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self._foreign = put_foreign(t)

    def resume(self, another: Operation, call: int) -> Exception | None:
        return attempt(self.t.client.restart)[1]

    def verify(self) -> None:
        expect_present(self.t, self._foreign, "resume, called by a starting process")


class DamagedRecord(Obstacle):
    """A volume whose records hold zeros meanwhile."""

    words = "a volume whose record cannot be read"

    def __init__(self, t: CheckContext) -> None:
        super().__init__(t)
        self._volume, self._records = new_records(t, t.volume)

    def resume(self, another: Operation, call: int) -> Exception | None:
        with ExitStack() as stack:
            for file in self._records:
                stack.enter_context(damages(self.t, file)["holds zeros"])
            return attempt(self.t.client.restart)[1]

    def verify(self) -> None:
        found = self.t.client.get(self._volume.handle)
        same(found, self._volume, "its records held zeros while a process started, then get_volume")


class OtherProcess(Obstacle):
    """Another process makes the call that died, and is paused where it died."""

    words = "what another process works on"

    def resume(self, another: Operation, call: int) -> Exception | None:
        another.before = self.t.resources()
        another.prepare()
        with second_process(self.t) as starting:
            started = OtherCall(self.t.injector, "resume", starting.backend.resume)
            with self.t.injector.inject(call, Fault.PAUSE, meanwhile=started.make):
                result_of(another.method, another.act)
            started.make()
            error = started.result().error
        _finish(another, f"{another.method}, paused at call {call} while another process started")
        return error


class AwayAtStart(Obstacle):
    """The storage is not there yet when the process starts, as its disk at a boot; the driver checks it regularly."""

    words = "a storage that was away until the first check()"

    def resume(self, another: Operation, call: int) -> Exception | None:
        assert self.t.storage.away
        with self.t.storage.away():
            error = attempt(self.t.client.restart)[1]
        retry(self.t.backend.check, "check() of a storage that is back")
        return error


def obstacles(t: CheckContext) -> Iterator[Obstacle]:
    """Yield those that the kit can make here, each only when the one before has been met."""
    yield OtherProcess(t)
    if t.storage.away:
        yield AwayAtStart(t)
    if t.storage.foreign:
        yield ForeignThings(t)
    if t.storage.records:
        yield DamagedRecord(t)


def operations(t: CheckContext) -> Iterator[Operation]:
    """Yield every operation that may leave something incomplete."""
    yield from creations(t)
    yield DeleteVolume(t)
    if b.Snapshots in t.features:
        yield DeleteSnapshot(t)
    if b.GroupSnapshots in t.features:
        yield DeleteGroupSnapshot(t)


def works_of(operation: Operation) -> list[ResumedDeath]:
    """Return what resume() does after a death at some of the calls, if it does anything."""
    t, found = operation.t, []
    deaths = FaultSweep(operation, Fault.DEATH)
    for call in deaths:
        deaths.inject(call)
        restart_process(t, deaths.where, resume=False)
        before = added_since(t, operation.before)
        restart_process(t, deaths.where, resume=True)
        after = added_since(t, operation.before)
        if after < before:
            found.append(ResumedDeath(operation, call, before, after))
        _finish(operation, f"{deaths.where}, then resume")
    count = min(MOST, len(found))
    return [found[place * len(found) // count] for place in range(count)]


def _expect_ended(t: CheckContext, work: ResumedDeath, obstacle: Obstacle) -> None:
    """Require that resume() removes as much beside the obstacle as it did without, where as much was left."""
    shared = type(work.operation)(t) if t.storage.snapshots else work.operation  # with sources of which none was cut
    start, method = t.resources(), shared.method
    all_died = [_died(shared, work, prefix) for prefix in PREFIXES]
    alike = sum(one for _, one in all_died)
    there = added_since(t, start)
    error = obstacle.resume(copy(shared), work.call)
    what = (
        f"{method}, whose process died at call {work.call}, {len(all_died)} times, then resume beside {obstacle.words}"
    )
    left = added_since(t, start) - there + alike * (work.before - work.after)
    if left > 0:
        reason = f", and raised {describe_error(error)}" if error else ""
        raise CheckFailed(
            f"{what}: it left {left} more than without that{reason}; what is in the way of one thing must not end the "
            f"work for the others. There are now: {', '.join(sorted(t.resources() - start)[:10])}"
        )
    obstacle.verify()
    for one, _ in all_died:
        _finish(one, what)
    expect_nothing_left(t, start, f"{what}, then repeated and deleted")


def _died(shared: Operation, work: ResumedDeath, prefix: str) -> tuple[Operation, bool]:
    """Let an operation die on a new resource. Returns it, and whether as much is there as after a death alone."""
    operation, t = copy(shared), shared.t
    t.prefix = prefix
    try:
        operation.before = t.resources()
        operation.prepare()
    finally:
        t.prefix = ""
    run_with_fault(t.injector, work.call, Fault.DEATH, operation.act)
    restart_process(t, operation.method, resume=False)
    return operation, added_since(t, operation.before) == work.before


def _finish(operation: Operation, what: str) -> None:
    """Repeat the request, and delete what there is."""
    answer = retry(operation.act, f"{what}, then the same request again")
    if isinstance(operation, CreateOperation):
        operation.made = answer
        retry(operation.remove, f"{what}, then the deletion")
    if isinstance(operation, DeleteOperation):
        expect_not_found(operation.read, f"{what}, then the same request again, then a read")
        operation.t.forget(operation.resource)


@check(needs=("resources",), target=Target.BACKEND)
def resume_ends_what_several_crashed_calls_left_whatever_is_beside_it(t: CheckContext) -> None:
    """Beside what belongs to others, a volume that cannot be read, what another process works on."""
    works = [work for operation in operations(t) for work in works_of(operation)]
    if not works:
        raise CheckSkipped("resume() removes nothing that a crashed call left: the same request again does")
    for obstacle in obstacles(t):
        for work in works:
            _expect_ended(t, work, obstacle)
        t.note(f"resume beside {obstacle.words}, after {len(works)} deaths")


class TwoStarts(Encounter):
    """Controller and node of a machine start at its boot, and both find what a call left that died."""

    methods = ("resume", "resume of a process that starts at the same time")
    both = False  # they are alike

    def __init__(self, t: CheckContext, other: InProcessClient, operation: Operation, call: int) -> None:
        super().__init__(t, other)
        self.operation = operation
        self.call = call  # of the death

    def renew(self) -> None:
        self.operation.renew()

    def prepare(self) -> None:
        self.operation.before = self.t.resources()
        self.operation.prepare()
        run_with_fault(self.t.injector, self.call, Fault.DEATH, self.operation.act)
        restart_process(self.t, self.operation.method, resume=False)
        self.processes = [InProcessClient(self.t.storage, self.t.injector) for _ in self.methods]

    def first(self) -> None:
        self.processes[0].backend.resume()

    def second(self) -> None:
        self.processes[1].backend.resume()

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        what = f"{self.operation.method}, whose process died at call {self.call}, then {what}"
        for result in (first, second):
            if result.error:
                raise CheckFailed(f"{what}: raised {describe_error(result.error)}; what is done already is no error")
        _finish(self.operation, what)

    def release(self) -> None:
        for one in self.processes:
            one.close()


@check(needs=("resources",), target=Target.BACKEND)
def two_processes_that_start_at_once_end_the_same_work(t: CheckContext) -> None:
    """What is left of a creation and of a deletion. One of them is paused at each of its calls to the storage."""
    works = [work for operation in (CreateVolume(t), DeleteVolume(t)) for work in works_of(operation)[-1:]]
    if not works:
        raise CheckSkipped("resume() removes nothing that a crashed call left: the same request again does")
    with second_process(t) as other:
        for work in works:
            expect_order(TwoStarts(t, other, work.operation, work.call))
