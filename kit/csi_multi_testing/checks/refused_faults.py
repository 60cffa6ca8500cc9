"""A creation that is refused while a call to the storage fails: its error is final only if nothing of it stays.

A creation is undone before it is refused. Where that fails, too, only a request that is repeated can end it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from csi_multi.contract import SnapshotRequest, StorageError
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckFailed, CheckSkipped, expect
from ..check import check
from ..context import CheckContext, source
from ..counting import expect_nothing_left
from ..fault_injection import Fault
from ..fault_sweep import MAX_CALLS, call_text, run_with_fault
from ..operations.base import RETRYABLE_ERRORS, describe_error, settle
from ..protocol import Target, VolumeSpec
from .refusals import too_much
from .sources import snapshot_as_source

Ask = Callable[[], object]


def request(t: CheckContext, method: str, spec: VolumeSpec) -> Ask:
    """Return a call of the backend itself: the core refuses some of these requests before it calls the backend."""
    return partial(getattr(t.backend, method), t.in_process.request(spec))


def refused_requests(t: CheckContext) -> Iterator[tuple[str, Ask]]:
    """Yield requests that cannot be fulfilled, each with what is wrong with it."""
    volume = t.volume()
    if b.Capacity in t.features:
        with suppress(CheckSkipped):  # there is no limit
            spec = t.spec(size=too_much(t))
            yield "create_volume of more than the capacity", request(t, "create_volume", spec)
    if b.Clone in t.features:
        spec = t.spec(size=1, limit=1, source=source(volume))
        yield "clone_volume within a limit below its source", request(t, "clone_volume", spec)
    if b.Snapshots in t.features:
        snapshot = snapshot_as_source(t, volume)
        spec = t.spec(size=1, limit=1, source=source(snapshot))
        yield "restore_volume within a limit below its source", request(t, "restore_volume", spec)
        t.delete(snapshot)
        spec = t.spec(size=0, source=source(snapshot))
        yield "restore_volume of a deleted snapshot", request(t, "restore_volume", spec)
    t.delete(volume)
    if b.Clone in t.features:
        spec = t.spec(size=0, source=source(volume))
        yield "clone_volume of a deleted volume", request(t, "clone_volume", spec)
    if b.Snapshots in t.features:
        stamp = t.in_process.request(t.spec(t.name("snapshot"))).stamp
        wanted = SnapshotRequest(stamp=stamp, source=volume.handle, secrets=t.storage.secrets)
        yield "create_snapshot of a deleted volume", partial(t.backend.create_snapshot, wanted)


def expect_refused(what: str, ask: Ask) -> None:
    answer, error, _ = settle(ask)
    if error is None:
        raise CheckFailed(f"{what}: answered {answer!r}, the contract requires an error that is final")
    final = isinstance(error, StorageError) and not isinstance(error, NOT_FINAL)
    expect(final, f"{what}: raised {describe_error(error)}, the contract requires an error that is final")


def expect_nothing_stays(t: CheckContext, what: str, ask: Ask, *, lasting: bool) -> int:
    """Let each call fail (`lasting`: and all later ones), and repeat the request; return how many there are."""
    before = t.resources()
    for call in itertools.count(1):
        _, error = run_with_fault(t.injector, call, Fault.ERROR, ask, lasting=lasting)
        if not t.injector.reached or call > MAX_CALLS:
            return call - 1
        rest = " and all later calls fail too" if lasting else ""
        where = f"{what}, whose call {call} ({call_text(t.injector, call)}) fails{rest}"
        if isinstance(error, StorageError) and not isinstance(error, NOT_FINAL):
            text = f"{where}: raised {describe_error(error)}, which is final ({RETRYABLE_ERRORS} would be repeated)"
            expect_nothing_left(t, before, text)
        expect_refused(f"{where}, repeated", ask)
        expect_nothing_left(t, before, f"{where}, repeated and refused")
    raise AssertionError


@check(needs=("resources",), target=Target.BACKEND)
def a_refused_creation_leaves_nothing_when_a_call_fails(t: CheckContext) -> None:
    for what, ask in refused_requests(t):
        expect_refused(what, ask)
        calls = [expect_nothing_stays(t, what, ask, lasting=lasting) for lasting in (False, True)]
        t.note(f"{what}, calls tried: {calls[0]}")
