"""A driver runs for months: no instance and no operation leaves open files, threads or child processes behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from csi_multi.contract import OpenRequest, SizeRange
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import CheckContext, source
from ..fault_injection import Fault
from ..fault_sweep import MAX_CALLS, run_with_fault
from ..lifecycle import Lifecycle
from ..operations.base import attempt, retry
from ..process_resources import added, measure
from ..protocol import Target
from .devices import open_device
from .foreign import operations_on

RUNS = 2  # after a first one, which may fill caches; what each of them leaves is a leak
REFUSALS = 4  # times that each refused request is made
SWEEPS = 3  # at most; one that adds nothing is the last


def expect_nothing_left(left: dict[str, list[str]], what: str) -> None:
    text = "; ".join(f"{len(names)} {kind} more: {', '.join(names[:10])}" for kind, names in left.items())
    expect(not left, f"{what}: {text}; close, end and wait for what an operation opens or starts")


def run_instance(t: CheckContext) -> None:
    """Run an instance from its start to its end, with every operation that the storage has."""
    t.in_process.restart()
    t.backend.check()
    Lifecycle(t, lambda: None).run()
    if t.storage.devices and not t.no_data_reason():
        volume = t.volume()
        for read_only in (False, True):
            with t.in_process.open_device(volume.handle, read_only=read_only):
                t.backend.find_device(volume.handle)
        t.delete(volume)
    t.backend.close()


@check(target=Target.BACKEND)
def an_instance_that_was_closed_leaves_nothing_in_its_process(t: CheckContext) -> None:
    t.backend.close()
    run_instance(t)
    before = measure()
    for _ in range(RUNS):
        run_instance(t)
    left = added(before, allowed=RUNS - 1)
    t.in_process.restart()
    expect_nothing_left(left, f"{RUNS} instances, each started, used for a whole lifecycle and closed")


@check(target=Target.BACKEND)
def calls_that_fail_leave_nothing_in_their_process(t: CheckContext) -> None:
    """Every call of a creation and a deletion fails, one after the other; the same backend object goes on.

    A pool of connections that is filled when it is needed may grow in the first sweep. A leak grows in each.
    """
    volume = t.volume()
    t.delete(volume)
    for sweep in range(1, SWEEPS + 1):
        before = measure()
        tried = _let_each_call_fail(t)
        left = added(before, allowed=0, wait=sweep == SWEEPS)
        if not left:
            break
    t.note(f"calls tried: {tried}")
    expect_nothing_left(left, f"create_volume and delete_volume, {tried} times with a failed call, repeated")


def _let_each_call_fail(t: CheckContext) -> int:
    """Return the number of calls. Raises CheckSkipped if there is none."""
    tried = 0
    for call in count(1):
        spec = t.spec()
        run_with_fault(t.injector, call, Fault.ERROR, partial(t.client.create, spec))
        reached = t.injector.reached
        made = retry(partial(t.create, spec), "create_volume, repeated after a failure")
        run_with_fault(t.injector, call, Fault.ERROR, partial(t.client.delete, made.handle))
        retry(partial(t.client.delete, made.handle), "delete_volume, repeated after a failure")
        t.forget(made)
        if not (reached or t.injector.reached) or call > MAX_CALLS:
            break
        tried += 1
    if not tried:
        raise CheckSkipped(
            "no call through the boundary was recorded; name the calls in Storage.calls or Storage.files"
        )
    return tried


def _refusals(t: CheckContext) -> Iterator[Callable[[], Any]]:
    """Yield calls that are refused, of everything that the backend can do with a volume."""
    volume, gone = t.volume(), t.volume()
    t.client.delete(gone.handle)
    again = replace(t.spec(volume.stamp.name), size=SizeRange(required=4 * volume.size))
    yield partial(t.client.create, again)
    yield partial(t.client.create, t.spec(size=t.storage.too_large))
    yield partial(t.backend.get_volume, gone.handle)
    yield partial(t.backend.find_volume, gone.stamp.name)
    yield partial(t.backend.delete_volume, gone.handle, t.storage.secrets)
    for feature, _, act in operations_on(t, t.in_process, gone.handle):
        if feature in t.features:
            yield act
    if b.Expand in t.features:
        yield partial(t.client.expand, volume.handle, SizeRange(required=t.storage.too_large))
        yield partial(t.client.expand, volume.handle, SizeRange(limit=volume.size - 1))
    if b.Clone in t.features:
        yield partial(t.client.create, t.spec(size=1, limit=1, source=source(volume)))
    if b.Snapshots in t.features:
        yield partial(t.backend.get_snapshot, gone.handle)
        yield partial(t.backend.delete_snapshot, gone.handle, t.storage.secrets)
    if t.storage.devices and not t.no_data_reason():
        open_device(t, volume)
        yield partial(t.client.delete, volume.handle)
        yield partial(t.backend.open_device, OpenRequest(handle=gone.handle, secrets=t.storage.secrets))
        yield partial(t.backend.find_device, gone.handle)


@check(target=Target.BACKEND)
def requests_that_are_refused_leave_nothing_in_their_process(t: CheckContext) -> None:
    """Orchestrators repeat them for days. Each is made several times, and the same backend object goes on."""
    refusals = list(_refusals(t))
    for act in refusals:  # a first time, which may fill caches
        attempt(act)
    before = measure()
    for _ in range(REFUSALS):
        for act in refusals:
            _, error = attempt(act)
            del error  # its traceback holds what the call had open
    left = added(before, allowed=REFUSALS - 1)
    t.note(f"requests: {len(refusals)}")
    expect_nothing_left(left, f"{len(refusals)} requests that are refused, {REFUSALS} times each")


@contextmanager
def own_temporary_directory() -> Iterator[Path]:
    """Let Python's temporary files be in a directory of their own in the block."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="csi-multi-kit-") as directory:
        tempfile.tempdir = directory
        try:
            yield Path(directory)
        finally:
            tempfile.tempdir = before


@check(target=Target.BACKEND)
def nothing_is_left_among_the_temporary_files_of_the_machine(t: CheckContext) -> None:
    """Neither after a lifecycle nor after calls that fail: a driver runs for months, and a file may hold a secret."""
    with own_temporary_directory() as directory:
        run_instance(t)
        t.in_process.restart()
        with suppress(CheckSkipped):
            _let_each_call_fail(t)
        left = sorted(str(one.relative_to(directory)) for one in directory.rglob("*"))
        expect(not left, f"{len(left)} temporary files of operations that ended: {', '.join(left[:5])}; remove them")
