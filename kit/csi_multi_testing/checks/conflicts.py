"""Another request under a taken name: AlreadyExists, and the existing volume stays as it is.

topology.py has the conflict of other segments.
"""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import AlreadyExists, Busy, SizeRange, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed
from ..check import check
from ..context import CheckContext, source
from ..operations.base import wait_until_ready
from ..protocol import VolumeSpec
from .creation import expect_nothing_new, expect_repeats, expect_unchanged


def expect_conflict(t: CheckContext, first: VolumeSpec, made: Volume, second: VolumeSpec, what: str) -> None:
    """Require that the second request is refused after the first one, and that it changes nothing."""
    before = t.new_resources()
    what = f"create_volume with a taken name, {what}"
    with t.refused(AlreadyExists, what=what):
        try:
            t.create(second)
        except Busy as error:  # the core's answer: another call must be using the name
            message = f"{what}: AlreadyExists was raised, but find_volume then found nothing ({error})"
            raise CheckFailed(message) from error
    expect_unchanged(t, made, f"{what}: refused, then")
    expect_nothing_new(t, before, f"{what}: refused, but")
    expect_repeats(t, made, first, "the first request again after a conflict")


@check()
def a_larger_size_under_a_taken_name_is_a_conflict(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)

    expect_conflict(
        t, spec, made, replace(spec, size=SizeRange(required=made.size + 1)), "requesting one byte more than it has"
    )


@check()
def a_smaller_limit_under_a_taken_name_is_a_conflict(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)

    smaller = SizeRange(required=1, limit=made.size - 1)
    expect_conflict(t, spec, made, replace(spec, size=smaller), "with a limit one byte below its size")


@check(data=True)
def a_conflict_leaves_the_data_unchanged(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)
    t.fill(made, "kit conflict")

    expect_conflict(
        t, spec, made, replace(spec, size=SizeRange(required=made.size + 1)), "requesting one byte more than it has"
    )

    t.expect_filled(made, "kit conflict", made.size, "the existing volume after a refused create_volume")


@check(needs=("other_parameters",))
def other_parameters_under_a_taken_name_are_a_conflict(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)

    expect_conflict(t, spec, made, replace(spec, parameters=t.storage.other_parameters or {}), "with other parameters")


@check(b.Modify, needs=("other_mutable",))
def other_mutable_parameters_under_a_taken_name_are_a_conflict(t: CheckContext) -> None:
    spec = t.spec()
    made = t.create(spec)

    expect_conflict(
        t, spec, made, replace(spec, mutable=t.storage.other_mutable or {}), "with other mutable parameters"
    )


@check(b.Snapshots)
def another_snapshot_under_a_taken_name_is_a_conflict(t: CheckContext) -> None:
    source_volume = t.volume()
    one, other = wait_until_ready(t, t.snapshot(source_volume)), wait_until_ready(t, t.snapshot(source_volume))
    empty = t.spec(size=source_volume.size)
    full = replace(empty, name=t.name(), source=source(one))
    empty_volume, copy = t.create(empty), t.create(full)

    expect_conflict(
        t, empty, empty_volume, replace(empty, source=source(one)), "from a snapshot, where an empty volume exists"
    )
    expect_conflict(t, full, copy, replace(full, source=None), "empty, where a volume from a snapshot exists")
    expect_conflict(t, full, copy, replace(full, source=source(other)), "from another snapshot")


@check(b.Clone)
def another_volume_as_source_under_a_taken_name_is_a_conflict(t: CheckContext) -> None:
    one, other = t.volume(), t.volume()
    empty = t.spec(size=one.size)
    full = replace(empty, name=t.name(), source=source(one))
    empty_volume, copy = t.create(empty), t.create(full)

    expect_conflict(
        t, empty, empty_volume, replace(empty, source=source(one)), "as a clone, where an empty volume exists"
    )
    expect_conflict(t, full, copy, replace(full, source=None), "empty, where a clone exists")
    expect_conflict(t, full, copy, replace(full, source=source(other)), "as a clone of another volume")
