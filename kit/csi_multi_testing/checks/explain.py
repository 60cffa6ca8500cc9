"""Dry runs (`csi-multi explain`): nothing changes, the steps name what would, the errors are those of a creation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from csi_multi.contract import (
    DryRunReport,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    StorageError,
    Unpredictable,
    Volume,
    ids,
)
from csi_multi.contract import backend as b
from csi_multi.core import idempotent

from ..assertions import CheckFailed, CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, source
from ..fault_injection import Fault
from ..fault_sweep import run_with_fault
from ..marked_secrets import expect_no_secret
from ..operations.base import attempt, describe_error
from ..operations.create import source_volume
from ..protocol import Target, VolumeSpec
from .creation import expect_nothing_new
from .sources import CopySource, snapshot_as_source

DISTINCT_LENGTH = 6  # characters of a name that is in no other word by chance


def dry_run(t: CheckContext, spec: VolumeSpec, report: DryRunReport) -> Volume:
    """Let the backend go through a creation. Raises what the creation would raise, and Unpredictable."""
    backend = t.backend.dry_run(report)
    try:
        return idempotent.create_volume(backend, t.in_process.request(spec), t.backend.setting.node)
    finally:
        backend.close()


def creations(t: CheckContext) -> Iterator[tuple[str, VolumeSpec, CopySource | None]]:
    """Yield one request of each kind: the method, the request, and its source."""
    yield "create_volume", t.spec(), None
    volume = source_volume(t)
    if b.Snapshots in t.features:
        snapshot = snapshot_as_source(t, volume)
        yield "restore_volume", t.spec(size=0, source=source(snapshot)), snapshot
    if b.Clone in t.features:
        yield "clone_volume", t.spec(size=0, source=source(volume)), volume


def expect_steps(report: DryRunReport, what: str, *names: str) -> None:
    """Require complete steps, of which one changes something, and one that contains one of these names."""
    for step in report.steps:
        complete = step.words and all(isinstance(word, str) for word in step.words) and step.why.strip()
        expect(complete, f"{what}: {step} has no words or no purpose; both are shown to the operator")
    changes = [step for step in report.steps if step.changes]
    expect(changes, f"{what}: no step changes anything, although the request changes the storage")
    text = " ".join(word for step in report.steps for word in step.words)
    expect(
        any(contains(text, name) for name in names),
        f"{what}: no step contains {' or '.join(map(repr, names))}; the operator must see what is meant: {text[:400]}",
    )


def contains(text: str, name: str) -> bool:
    """Return whether a text has this name; a short one must be a whole word, because it is a part of many."""
    if len(name) >= DISTINCT_LENGTH:
        return name in text
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text) is not None


def names_of(handle: str) -> tuple[str, ...]:
    return handle, handle.rpartition("/")[2]


@check(b.Explain, target=Target.BACKEND)
def a_dry_run_changes_nothing_and_predicts_the_creation(t: CheckContext) -> None:
    """The same request is served afterwards, by the same backend object."""
    for method, spec, of in creations(t):
        before, what = t.new_resources(), f"dry run of {method}"
        predicted, error = attempt(partial(dry_run, t, spec, DryRunReport()))
        expect(
            error is None or isinstance(error, Unpredictable),
            f"{what}: raised {describe_error(error) if error else ''}, the creation is served",
        )
        same(t.new_resources(), before, f"{what}: the storage, against what was there before")
        with t.refused(NotFound, what=f"{what}, then find_volume"):
            t.backend.find_volume(spec.name)
        if of is not None:
            read = t.client.get if isinstance(of, Volume) else t.client.get_snapshot
            same(read(of.handle), of, f"{what}, then its source")
        made = t.create(spec)
        if predicted is not None:
            same(predicted.size, made.size, f"{what}: the size, against the size that {method} creates")
            same(predicted.stamp, made.stamp, f"{what}: the stamp, against {method}'s")


@check(b.Explain, target=Target.BACKEND)
def the_steps_of_a_dry_run_name_the_volume_and_its_source(t: CheckContext) -> None:
    for method, spec, of in creations(t):
        report, what = DryRunReport(), f"dry run of {method}"
        _, error = attempt(partial(dry_run, t, spec, report))
        if isinstance(error, Unpredictable):
            t.note(f"{what}: {error}")
            continue
        made = t.create(spec)
        expect_steps(report, what, spec.name, ids.leaf(spec.name), *names_of(made.handle))
        if of is not None:
            expect_steps(report, f"{what}, the source", *names_of(of.handle))


def expect_refused(t: CheckContext, spec: VolumeSpec, what: str, *kinds: type[StorageError]) -> None:
    """Require an error of these classes, or Unpredictable, with a note: some limits only the storage knows."""
    _, error = attempt(partial(dry_run, t, spec, DryRunReport()))
    if isinstance(error, Unpredictable):
        t.note(f"{what}: {error}")
        return
    with t.refused(*kinds, what=what):
        if error:
            raise error


@check(b.Explain, target=Target.BACKEND)
def a_dry_run_raises_the_errors_of_a_creation(t: CheckContext) -> None:
    too_large = t.spec(size=t.storage.too_large)
    expect_refused(t, too_large, "dry run of create_volume of Storage.too_large bytes", OutOfRange, ResourceExhausted)

    for method, spec, of in creations(t):
        if of is None:
            continue
        delete = t.client.delete if isinstance(of, Volume) else t.client.delete_snapshot
        delete(of.handle)
        expect_refused(t, spec, f"dry run of {method} whose source was deleted", NotFound)


@check(b.Explain, target=Target.BACKEND)
def a_dry_run_contains_no_secret(t: CheckContext) -> None:
    for method, spec, _ in creations(t):
        too_large = t.spec(size=t.storage.too_large, source=spec.source)
        for request in (spec, too_large):
            report = DryRunReport()
            _, error = attempt(partial(dry_run, t, request, report))
            where = f"dry run of {method}: its steps or error"
            expect_no_secret(f"{report} {error} {error!r}", t.storage.secrets, where)


@check(b.Explain, target=Target.BACKEND)
def an_offline_dry_run_reads_nothing(t: CheckContext) -> None:
    """It is for storage that cannot be reached, or that belongs to another node."""
    for method, spec, of in creations(t):
        report, what = DryRunReport(offline=True), f"offline dry run of {method}"
        with t.injector.inject(0):
            _, error = attempt(partial(dry_run, t, spec, report))
        calls = t.injector.calls
        expect(not calls, f"{what}: made {len(calls)} calls to the storage: {', '.join(calls[:3])}")
        if of is not None:
            fine = error is None or isinstance(error, Unpredictable)
        else:
            fine = error is None
            expect_steps(report, what, spec.name, ids.leaf(spec.name))
        expect(fine, f"{what}: raised {describe_error(error) if error else ''}, it must show the steps")


@check(b.Explain, target=Target.BACKEND)
def a_dry_run_while_the_storage_fails_raises_a_storage_error(t: CheckContext) -> None:
    """`csi-multi explain` continues offline then; any other exception would end it with a traceback."""
    spec, before = t.spec(), t.new_resources()
    for fault in (Fault.ERROR, Fault.TIMEOUT):
        _, error = run_with_fault(t.injector, 1, fault, partial(dry_run, t, spec, DryRunReport()), lasting=True)
        if not t.injector.reached:
            raise CheckSkipped("a dry run makes no call through the boundary")
        if error is not None and not isinstance(error, StorageError):
            raise CheckFailed(f"dry run, while every call {fault.value}: raised {describe_error(error)}") from error
    expect_nothing_new(t, before, "dry runs while the storage fails")
