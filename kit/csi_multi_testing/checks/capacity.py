"""Capacity: the reported size can be created, a larger one cannot, and unsupported uses and segments have none.

Others may use the storage during a check, so a number that looks wrong is read again before the check fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from csi_multi.contract import AccessMode, Capability, CapacityReport, Mount, OutOfRange, ResourceExhausted
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped, expect
from ..check import check
from ..context import CheckContext
from ..fault_injection import FILESYSTEM_CALLS
from ..occupied_space import NO_LIMIT, free_space, occupied
from ..operations.base import wait_until_ready
from ..protocol import Target

MAX_SIZE_FACTOR = 64  # times Storage.size: a larger volume takes too long to create
TRIES = 3
OTHERS_TAKE = 4  # times Storage.size


def largest(report: CapacityReport) -> int:
    """Return the size of the largest volume that can be created according to capacity()."""
    return report.available if report.maximum is None else min(report.available, report.maximum)


def report_of_free_space(t: CheckContext) -> CapacityReport:
    """Return the report. Raises CheckSkipped for a storage that has no space for a volume."""
    report = t.client.capacity()
    if largest(report) < max(t.size, report.minimum or 0):
        raise CheckSkipped(
            f"capacity() reports {report.available} bytes, less than a volume of Storage.size; "
            "free space on the storage, or set a smaller Storage.size"
        )
    return report


def require_single_promises(t: CheckContext) -> CapacityReport:
    """Return the report. Raises CheckSkipped for a storage that promises its space more than once, or without limit."""
    if t.storage.overcommitted:
        raise CheckSkipped("Storage.overcommitted: the storage promises its space any number of times")
    report = report_of_free_space(t)
    if report.available > NO_LIMIT:
        raise CheckSkipped("capacity() reports no limit")
    return report


@check(b.Capacity)
def the_capacity_numbers_are_consistent(t: CheckContext) -> None:
    report = t.client.capacity()

    numbers = {"available": report.available, "maximum": report.maximum, "minimum": report.minimum}
    for name, number in numbers.items():
        expect(number is None or number >= 0, f"capacity().{name} is {number}; it must not be negative")
    if report.minimum is not None and report.maximum is not None and largest(report):
        text = f"capacity().minimum is {report.minimum}, greater than maximum, {report.maximum}"
        expect(report.minimum <= report.maximum, text)


def occupy(t: CheckContext) -> None:
    """Create volumes, and a snapshot and a copy where there are such, that hold data where it can be written.

    Raises CheckSkipped for a storage that has no space for them: together they take up to six times Storage.size.
    """
    report_of_free_space(t)
    try:
        volume, other = t.volume(size=2 * t.size), t.volume()
        for each in () if t.no_data_reason() else (volume, other):
            t.fill(each, "kit occupied")
        if b.Snapshots in t.features:
            wait_until_ready(t, t.snapshot(volume))
        if b.Clone in t.features:
            t.copy(other)
    except t.client.kind_of(ResourceExhausted) as error:
        raise CheckSkipped(f"the storage has no space for a few volumes of Storage.size: {error}") from error


@check(b.Capacity)
def a_volume_as_large_as_the_reported_capacity_can_be_created(t: CheckContext) -> None:
    expect_largest_is_created(t)


@check(b.Capacity)
def beside_volumes_and_snapshots_a_volume_as_large_as_the_reported_capacity_can_be_created(t: CheckContext) -> None:
    """On empty storage a number that ignores what is promised already is right by chance."""
    largest_that_is_quick(t)
    occupy(t)
    expect_largest_is_created(t)


def largest_that_is_quick(t: CheckContext) -> int:
    """Return the size of the largest volume. Raises CheckSkipped where its creation would take too long."""
    size = largest(report_of_free_space(t))
    if size > MAX_SIZE_FACTOR * t.size:
        raise CheckSkipped(f"the largest volume has {size} bytes, more than {MAX_SIZE_FACTOR} times Storage.size")
    return size


def expect_largest_is_created(t: CheckContext) -> None:
    size = largest_that_is_quick(t)
    try:
        made = t.volume(size=size)
    except (ResourceExhausted, OutOfRange) as error:
        if largest(t.client.capacity()) < size:
            raise CheckSkipped("others use space of this storage at the same time") from error
        raise CheckFailed(f"capacity() reports space for a volume of {size} bytes, but: {error}") from error
    expect(made.size >= size, f"create_volume returned {made.size} bytes, requested were {size}")


@check(b.Capacity)
def a_volume_larger_than_the_reported_capacity_is_refused(t: CheckContext) -> None:
    expect_larger_is_refused(t)


@check(b.Capacity)
def beside_volumes_and_snapshots_a_volume_larger_than_the_reported_capacity_is_refused(t: CheckContext) -> None:
    occupy(t)
    expect_larger_is_refused(t)


def expect_larger_is_refused(t: CheckContext) -> None:
    """On large storage twice as much: what others free meanwhile must not make it possible, or it would take all."""
    for number in range(TRIES):
        report = t.client.capacity()
        most = report.available if report.maximum is None else report.maximum
        size = most + (t.size if most <= MAX_SIZE_FACTOR * t.size else most)
        if size > NO_LIMIT:
            raise CheckSkipped("capacity() reports no limit")
        try:
            made = t.volume(size=size)
        except (ResourceExhausted, OutOfRange):
            return
        t.client.delete(made.handle)
        if largest(t.client.capacity()) >= size and number < TRIES - 1:
            continue  # others freed space in the meantime
        raise CheckFailed(
            f"a volume of {size} bytes was created although capacity() reported {report}; "
            "report what can still be created, not what is free, or refuse larger volumes"
        )


@check(b.Capacity)
def a_new_volume_lowers_the_capacity_by_its_size_or_not_at_all(t: CheckContext) -> None:
    """Create up to three volumes; one must be right, because others may use and free space at the same time."""
    report_of_free_space(t)
    changes = []
    for _ in range(TRIES):
        before = t.client.capacity().available
        made = t.volume()
        taken = before - t.client.capacity().available
        if 0 <= taken <= MAX_SIZE_FACTOR * made.size:  # overprovisioning multiplies the storage's own records
            return
        changes.append(taken)
        t.client.delete(made.handle)
    raise CheckFailed(f"capacity().available fell by {changes} bytes when volumes of {made.size} bytes were created")


@check(b.Capacity)
def space_that_is_promised_to_a_volume_is_not_promised_again(t: CheckContext) -> None:
    """A new volume takes its whole size of the capacity, although it holds nothing yet."""
    require_single_promises(t)
    changes = []
    for _ in range(TRIES):
        before = t.client.capacity().available
        made = t.volume(size=2 * t.size)
        changes.append(before - t.client.capacity().available)
        if changes[-1] >= made.size // 2:  # the rest: others may free space at the same time
            return
        t.client.delete(made.handle)
    raise CheckFailed(
        f"capacity().available fell by {changes} bytes when volumes of {made.size} bytes were created: the same space "
        "is promised again; subtract what existing volumes can still take, or, if the storage is overcommitted without "
        "a limit, set Storage.overcommitted"
    )


@check(b.Capacity, target=Target.BACKEND)
def space_that_others_take_is_not_reported(t: CheckContext) -> None:
    """Others have files on the same filesystem, or volumes in the same pool. They may free space meanwhile, too."""
    if t.storage.overcommitted:
        raise CheckSkipped("Storage.overcommitted: the storage promises its space any number of times")
    taken, changes = OTHERS_TAKE * t.size, []
    for _ in range(TRIES):
        before = report_of_free_space(t).available
        if before > NO_LIMIT or before < 2 * taken:
            raise CheckSkipped(f"capacity() reports {before} bytes: no limit, or not twice the {taken} to be taken")
        with occupied(t, taken):
            found = t.client.capacity()
            changes.append(before - found.available)
            limited = not t.storage.occupy and found.available <= free_space(t)  # by a quota: that much is there
            if changes[-1] >= taken // 2 or limited:
                if t.size <= largest(found) <= MAX_SIZE_FACTOR * t.size:
                    expect_largest_is_created(t)
                return
    raise CheckFailed(
        f"capacity().available fell by {changes} bytes when others took {taken} bytes of the storage; report what is "
        "free now, not what the backend's own volumes leave"
    )


@check(b.Capacity, target=Target.BACKEND)
def the_capacity_is_read_from_the_storage(t: CheckContext) -> None:
    """If the kit records calls of a creation, it must record a call of capacity() too, at the latest in a new process.

    Those for the space of a filesystem count here, without being named.
    """
    with t.injector.inject(0):
        t.volume()
    creation_calls = t.injector.calls
    t.client.restart()

    with t.injector.around(FILESYSTEM_CALLS), t.injector.inject(0):
        found = t.client.capacity()

    if t.storage.overcommitted or largest(found) > NO_LIMIT:
        raise CheckSkipped("the capacity has no limit, so it need not be read")
    expect(
        t.injector.calls or not creation_calls,
        f"capacity() of a new process made no call through the boundary, create_volume made {len(creation_calls)} "
        "calls; the number must come from the storage: read it there, or name the call in Storage.calls",
    )


@check(b.Capacity)
def deleting_a_volume_restores_the_capacity(t: CheckContext) -> None:
    report_of_free_space(t)
    for _ in range(TRIES):
        before = t.client.capacity().available
        made = t.volume(size=2 * t.size)
        while_there = t.client.capacity().available
        t.client.delete(made.handle)
        after = t.client.capacity().available
        if before - after < made.size // 2:
            return
    raise CheckFailed(
        f"capacity().available was {before} bytes, {while_there} with a volume of {made.size} bytes, "
        f"and {after} after it was deleted; a deletion must give back the capacity"
    )


def all_uses() -> Iterator[Capability]:
    for mode in AccessMode:
        yield Capability(mode=mode)
        yield Capability(mode=mode, mount=Mount(fs_type="ext4"))


@check(b.Capacity, target=Target.BACKEND)
def supported_uses_have_capacity_and_unsupported_uses_have_none(t: CheckContext) -> None:
    report_of_free_space(t)
    parameters = t.in_process.request(t.spec()).parameters
    for use in all_uses():
        reason = t.backend.unsupported(use, parameters)
        found = t.client.capacity(capabilities=(use,)).available
        what = f"capacity for {use.mode.name} {'as a block device' if use.block else 'with a filesystem'}"
        expect(not reason or not found, f"{what} is {found} bytes, but unsupported() refuses the use: {reason}")
        expect(reason or found, f"{what} is 0, but unsupported() accepts the use and capacity without a use is not 0")


@check(b.Capacity)
def capacity_of_any_segments_is_answered_without_an_error(t: CheckContext) -> None:
    for place in ({"nobody-knows": "this"}, {**t.client.segments(), "nobody-knows": "this"}, t.client.segments(), {}):
        found = t.client.capacity(segments=place).available
        expect(found >= 0, f"capacity at {place} is {found} bytes; it must not be negative")


@check(b.Capacity, b.NodeLocal)
def other_nodes_have_no_capacity(t: CheckContext) -> None:
    report_of_free_space(t)
    here = t.client.segments()
    expect(t.client.capacity(segments=here).available, f"capacity at {here}, the segments of this node, is 0 bytes")
    elsewhere = {**here, "node": f"{here['node']}0"}
    found = t.client.capacity(segments=elsewhere).available
    expect(
        not found, f"capacity at {elsewhere}, the segments of another node, is {found} bytes, the contract requires 0"
    )


@check(b.Capacity, b.Topology, needs=("unreachable",))
def unreachable_segments_have_no_capacity(t: CheckContext) -> None:
    for place in t.storage.unreachable:
        found = t.client.capacity(segments=place).available
        expect(
            not found, f"capacity at {place}, where no volume can be created, is {found} bytes, the contract requires 0"
        )


@check(b.Capacity, b.Topology, needs=("reachable",))
def reachable_segments_have_capacity(t: CheckContext) -> None:
    report_of_free_space(t)
    for place in t.storage.reachable:
        for segments in (place, {**place, "of-another-instance": "here"}):
            found = t.client.capacity(segments=segments).available
            expect(found, f"capacity at {segments}, where volumes can be created, is 0 bytes")
