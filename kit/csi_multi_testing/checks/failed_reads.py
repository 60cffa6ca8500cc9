"""A failed read must not be reported as absent, empty, closed, full or healthy: an error, or the true answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from csi_multi.contract import Blank, Device
from csi_multi.contract import backend as b
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckSkipped, expect
from ..check import check
from ..context import CheckContext, pages
from ..fault_injection import FILESYSTEM_CALLS, Fault
from ..fault_sweep import MAX_CALLS, call_text, run_with_fault
from ..operations.base import RETRYABLE_ERRORS, describe_error
from ..operations.create import as_ready
from ..protocol import Target
from .devices import open_device

Read = Callable[[], Any]


def expect_true_or_retryable(
    t: CheckContext, reads: dict[str, Read], is_true: Callable[[Any, Any], bool] = lambda found, wanted: found == wanted
) -> None:
    """Let every call fail, alone and with all later ones. Require the true answer or a retryable error."""
    calls_tried = {
        name: sum(_sweep(t, name, read, is_true, fault, lasting) for fault, lasting in FAULTS)
        for name, read in reads.items()
    }
    if unrecorded := [name for name, calls in calls_tried.items() if not calls]:
        text = (
            f"{' and '.join(unrecorded)}: no call through the boundary was recorded; "
            "name the calls in Storage.calls or Storage.files"
        )
        if len(unrecorded) == len(calls_tried):
            raise CheckSkipped(text)
        t.note(text)


FAULTS = ((Fault.ERROR, False), (Fault.ERROR, True), (Fault.TIMEOUT, False), (Fault.NO_SOCKET, False))


def _sweep(
    t: CheckContext, name: str, read: Read, is_true: Callable[[Any, Any], bool], fault: Fault, lasting: bool
) -> int:
    wanted = read()
    for call in itertools.count(1):
        found, error = run_with_fault(t.injector, call, fault, read, lasting=lasting)
        if not t.injector.reached or call > MAX_CALLS:
            return call - 1
        where = f"{name}, whose call {call} ({call_text(t.injector, call)}) {fault.value}"
        if error:
            expect(
                isinstance(error, NOT_FINAL),
                f"{where}: raised {describe_error(error)}, the contract requires {RETRYABLE_ERRORS}",
            )
        else:
            expect(
                is_true(found, wanted),
                f"{where}: answered {found!r}, the contract requires {wanted!r} or {RETRYABLE_ERRORS}",
            )
    return 0


@check(target=Target.BACKEND)
def a_failed_read_of_a_volume_is_not_reported_as_not_found(t: CheckContext) -> None:
    volume = t.volume()
    expect_true_or_retryable(
        t,
        {
            "get_volume": lambda: t.backend.get_volume(volume.handle),
            "find_volume": lambda: t.backend.find_volume(volume.stamp.name),
        },
    )


@check(b.Snapshots, target=Target.BACKEND)
def a_failed_read_of_a_snapshot_is_not_reported_as_not_found(t: CheckContext) -> None:
    snapshot = t.snapshot(t.volume())
    expect_true_or_retryable(
        t,
        {
            "get_snapshot": lambda: as_ready(t.backend.get_snapshot(snapshot.handle)),
            "find_snapshot": lambda: as_ready(t.backend.find_snapshot(snapshot.stamp.name)),
        },
    )


@check(b.GroupSnapshots, target=Target.BACKEND)
def a_failed_read_of_a_group_snapshot_is_not_reported_as_not_found(t: CheckContext) -> None:
    group = t.group([t.volume(), t.volume()])
    expect_true_or_retryable(
        t,
        {
            "get_group_snapshot": lambda: as_ready(t.backend.get_group_snapshot(group.handle)),
            "find_group_snapshot": lambda: as_ready(t.backend.find_group_snapshot(group.stamp.name)),
        },
    )


@check(b.ListVolumes, target=Target.BACKEND)
def a_failed_read_never_shortens_the_list_of_volumes(t: CheckContext) -> None:
    ours = {t.volume().handle, t.volume().handle}
    expect_true_or_retryable(
        t,
        {"list_volumes": lambda: ours & {one.handle for one in pages(t.client.list_volumes)}},
    )


@check(b.ListSnapshots, target=Target.BACKEND)
def a_failed_read_never_shortens_the_list_of_snapshots(t: CheckContext) -> None:
    volume = t.volume()
    ours = {t.snapshot(volume).handle, t.snapshot(volume).handle}
    expect_true_or_retryable(
        t,
        {
            "list_snapshots": lambda: ours & {one.handle for one in pages(t.client.list_snapshots)},
            "list_snapshots of a volume": lambda: (
                ours & {one.handle for one in pages(t.client.list_snapshots, source=volume.handle)}
            ),
        },
    )


@check(b.Capacity, target=Target.BACKEND)
def a_failed_read_of_the_capacity_is_not_reported_as_zero(t: CheckContext) -> None:
    with t.injector.around(FILESYSTEM_CALLS):
        expect_true_or_retryable(
            t, {"capacity": t.client.capacity}, lambda found, wanted: found.available > 0 or not wanted.available
        )


@check(b.VolumeHealthReporter, target=Target.BACKEND)
def a_failed_read_of_health_is_not_reported_as_a_missing_volume(t: CheckContext) -> None:
    volume = t.volume()
    reads: dict[str, Read] = {"volume_health": lambda: t.client.health(volume.handle)}
    if b.VolumeHealthLister in t.features:
        reads["list_volume_health"] = lambda: volume.handle in {one.handle for one in pages(t.client.list_health)}
    expect_true_or_retryable(t, reads)


@check(needs=("devices",), data=True, target=Target.BACKEND)
def a_failed_search_for_a_device_is_not_reported_as_closed(t: CheckContext) -> None:
    volume = t.volume()
    open_device(t, volume)

    expect_true_or_retryable(t, {"find_device": lambda: t.backend.find_device(volume.handle)}, is_device)


def is_device(found: Device | None, wanted: Device) -> bool:
    """Whether it is the device. Where its use cannot be read, Blank.NEVER is right, too (open_device)."""
    return found is not None and found in (wanted, replace(wanted, blank=Blank.NEVER))


@check(target=Target.BACKEND)
def check_reports_a_storage_that_fails_every_call(t: CheckContext) -> None:
    with t.injector.inject(0):
        t.backend.check()
    if not t.injector.calls:
        raise CheckSkipped(
            "check: no call through the boundary was recorded; name the calls in Storage.calls or Storage.files"
        )
    for fault in (Fault.ERROR, Fault.TIMEOUT, Fault.NO_SOCKET):
        _, error = run_with_fault(t.injector, 1, fault, t.backend.check, lasting=True)
        if t.injector.happened:
            message = f"raised {describe_error(error)}" if error else "succeeded"
            text = f"check, while every call to the storage {fault.value}: {message}, the contract requires Unavailable"
            expect(isinstance(error, NOT_FINAL), text)
