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
from ..protocol import Target

MAX_SIZE_FACTOR = 64  # times Storage.size: a larger volume takes too long to create
TRIES = 3
NO_LIMIT = 1 << 62  # bytes


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


@check(b.Capacity)
def the_capacity_numbers_are_consistent(t: CheckContext) -> None:
    report = t.client.capacity()

    numbers = {"available": report.available, "maximum": report.maximum, "minimum": report.minimum}
    for name, number in numbers.items():
        expect(number is None or number >= 0, f"capacity().{name} is {number}; it must not be negative")
    if report.minimum is not None and report.maximum is not None and largest(report):
        text = f"capacity().minimum is {report.minimum}, greater than maximum, {report.maximum}"
        expect(report.minimum <= report.maximum, text)


@check(b.Capacity)
def a_volume_as_large_as_the_reported_capacity_can_be_created(t: CheckContext) -> None:
    size = largest(report_of_free_space(t))
    if size > MAX_SIZE_FACTOR * t.size:
        raise CheckSkipped(f"the largest volume has {size} bytes, more than {MAX_SIZE_FACTOR} times Storage.size")

    try:
        made = t.volume(size=size)
    except (ResourceExhausted, OutOfRange) as error:
        if largest(t.client.capacity()) < size:
            raise CheckSkipped("others use space of this storage at the same time") from error
        raise CheckFailed(f"capacity() reports space for a volume of {size} bytes, but: {error}") from error
    expect(made.size >= size, f"create_volume returned {made.size} bytes, requested were {size}")


@check(b.Capacity)
def a_volume_larger_than_the_reported_capacity_is_refused(t: CheckContext) -> None:
    for number in range(TRIES):
        report = t.client.capacity()
        size = (report.available if report.maximum is None else report.maximum) + t.size
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
