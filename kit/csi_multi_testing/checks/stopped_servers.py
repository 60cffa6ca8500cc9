"""A server that does not answer (Storage.server is stopped): a call ends at its deadline, and its retry completes.

It is stopped before the call, and before each of the requests that the call makes of it (Storage.calls).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from csi_multi.contract import (
    AttachRequest,
    ExpandRequest,
    GroupSnapshotRequest,
    ModifyRequest,
    SizeRange,
    SnapshotRequest,
    Volume,
)
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL
from csi_multi.contract.params import parse

from ..assertions import expect
from ..check import check
from ..concurrency import run_concurrently
from ..context import CheckContext, source
from ..fault_injection import Fault
from ..operations.base import RETRYABLE_ERRORS, attempt, describe_error, retry
from ..operations.create import source_volume
from ..protocol import BLOCK, Target
from ..server_kills import server_of
from ..waiting import BACK_SECONDS
from .sources import snapshot_as_source

DEADLINES = {"over": -1.0, "short": 0.5}  # seconds from now
LATE_SECONDS = 4.0  # after the deadline: a busy machine, and the call's own way back
MOST = 8  # requests of one call

Ask = tuple[Any, Callable[[], Any]]  # a request without its deadline, and how the core asks for the same afterwards


@dataclass(frozen=True)
class DeadlineCall:
    """A method whose request has a deadline. `prepare` makes a new request each time."""

    method: str
    prepare: Callable[[], Ask]


class Requests:
    """Requests of every method with a deadline, each for a resource of its own."""

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.source = source_volume(t)
        self.cut = snapshot_as_source(t, self.source) if b.Snapshots in t.features else None

    def __iter__(self) -> Iterator[DeadlineCall]:
        t = self.t
        yield DeadlineCall("create_volume", self._create)
        if b.Clone in t.features:
            yield DeadlineCall("clone_volume", partial(self._create, size=0, source=source(self.source)))
        if self.cut:
            yield DeadlineCall("restore_volume", partial(self._create, size=0, source=source(self.cut)))
            yield DeadlineCall("create_snapshot", self._snapshot)
        if b.GroupSnapshots in t.features:
            yield DeadlineCall("create_group_snapshot", self._group)
        if b.Expand in t.features and not t.in_process.grows_only_attached:
            yield DeadlineCall("expand_volume", self._expand)
        if b.Modify in t.features and t.storage.other_mutable:
            yield DeadlineCall("modify_volume", self._modify)
        if b.Attach in t.features and t.storage.nodes:
            yield DeadlineCall("attach", self._attach)

    def _create(self, **more: Any) -> Ask:
        spec = self.t.spec(**more)
        return self.t.in_process.request(spec), partial(self.t.create, spec)

    def _snapshot(self) -> Ask:
        name = self.t.name("snapshot")
        wanted = SnapshotRequest(stamp=self._stamp(name), source=self.source.handle, secrets=self.t.storage.secrets)
        return wanted, partial(self.t.snapshot, self.source, name)

    def _group(self) -> Ask:
        name, volumes = self.t.name("group"), [self.source, self.t.volume()]
        handles = tuple(one.handle for one in volumes)
        wanted = GroupSnapshotRequest(stamp=self._stamp(name), sources=handles, secrets=self.t.storage.secrets)
        return wanted, partial(self.t.group, volumes, name)

    def _stamp(self, name: str) -> Any:
        assert self.cut
        return replace(self.cut.stamp, name=name)

    def _expand(self) -> Ask:
        volume = self.t.volume()
        size = SizeRange(required=volume.size + self.t.size)
        wanted = ExpandRequest(handle=volume.handle, size=size, secrets=self.t.storage.secrets)
        return wanted, partial(self.t.client.expand, volume.handle, size)

    def _modify(self) -> Ask:
        volume, mutable = self.t.volume(), dict(self.t.storage.other_mutable or {})
        own = parse(type(self.t.backend).MutableParameters, mutable, "mutable_parameters")
        wanted = ModifyRequest(handle=volume.handle, mutable=own, secrets=self.t.storage.secrets)
        return wanted, partial(self.t.client.modify, volume.handle, mutable)

    def _attach(self) -> Ask:
        volume, node = self.t.volume(), self.t.storage.nodes[0]
        wanted = AttachRequest(handle=volume.handle, node=node, capability=BLOCK, secrets=self.t.storage.secrets)
        return wanted, partial(self._attached, volume)

    def _attached(self, volume: Volume) -> None:
        self.t.attach(volume, self.t.storage.nodes[0])
        self.t.detach(volume)


def timed(t: CheckContext, method: str, request: Any, seconds: float) -> tuple[Exception | None, float]:
    """Make the call with a deadline so far from now; return its error, and how late it ended."""
    started = time.monotonic()
    _, error = attempt(lambda: getattr(t.backend, method)(replace(request, deadline=started + seconds)))
    return error, time.monotonic() - started - max(0.0, seconds)


def expect_in_time(text: str, error: Exception | None, late: float) -> None:
    failed = f"{text}: raised {describe_error(error) if error else ''}, the contract requires {RETRYABLE_ERRORS}"
    expect(error is None or isinstance(error, NOT_FINAL), failed)
    slow = f"{text}: ends {late:.1f} s after it; bound every wait by request.deadline, and raise Timeout"
    expect(late < LATE_SECONDS, slow)


@check(needs=("server",), target=Target.BACKEND)
def calls_end_at_their_deadline_while_the_server_does_not_answer(t: CheckContext) -> None:
    """All at once, because each may take until the deadline and a little longer."""
    calls = [(one.method, *one.prepare()) for one in Requests(t)]
    for what, seconds in DEADLINES.items():
        with server_of(t).stopped():
            run = [(method, partial(timed, t, method, request, seconds)) for method, request, _ in calls]
            found = [one.answer for one in run_concurrently(run, BACK_SECONDS)]
        for (method, *_), (error, late) in zip(calls, found, strict=True):
            expect_in_time(f"{method} with a deadline that is {what}, while the server does not answer", error, late)
    for method, _, again in calls:
        retry(again, f"{method}, repeated after the server did not answer", BACK_SECONDS)


@check(needs=("server", "calls"), target=Target.BACKEND)
def calls_end_at_their_deadline_where_the_server_stops_between_two_answers(t: CheckContext) -> None:
    for one in Requests(t):
        for at in itertools.count(2):  # before the first one it is stopped in the other check
            request, again = one.prepare()
            with ExitStack() as stopped:
                stop = partial(stopped.enter_context, server_of(t).stopped())
                with t.injector.inject(at, Fault.PAUSE, meanwhile=lambda stop=stop: stop() and None):  # type: ignore[misc]
                    error, late = timed(t, one.method, request, DEADLINES["short"])
                reached, text = t.injector.reached, f"{one.method} with a short deadline"
            if reached:
                expect_in_time(f"{text}, when the server stops before request {at}", error, late)
            retry(again, f"{one.method}, repeated after the server did not answer", BACK_SECONDS)
            if not reached or at == MOST:
                break
