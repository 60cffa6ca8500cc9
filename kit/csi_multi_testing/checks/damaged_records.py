"""A record that cannot be read: what it describes is neither absent nor new, and comes back with the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from csi_multi.contract import Blank, NotFound, SizeRange, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext, source
from ..damaged_records import damaged, expect_not_absent, with_records
from ..marked_secrets import given_secrets
from ..operations.base import attempt, describe_error, retry, wait_until_ready
from ..operations.create import SEED, source_volume
from ..protocol import Target
from .devices import open_device

REPAIRED = "the records were overwritten with zeros and repaired"


def requests(t: CheckContext, volume: Volume) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what may be asked of a volume without a change of it, with the name of the method."""
    yield "get_volume", lambda: t.client.get(volume.handle)
    if b.Expand in t.features:
        yield "expand_volume", lambda: t.client.expand(volume.handle, SizeRange(required=volume.size))
    if t.storage.devices and not t.no_data_reason():
        yield "open_device", lambda: open_device(t, volume)


@check(needs=("records",), target=Target.BACKEND)
def a_volume_whose_record_cannot_be_read_is_not_taken_for_absent(t: CheckContext) -> None:
    """Its data may be whole. Nothing removes it, also not at the next start, and it is there when the record is."""
    volume, records = with_records(t, t.volume)
    found = t.client.get(volume.handle)
    for what in damaged(t, records):
        for method, ask in requests(t, volume):
            expect_not_absent(ask, method, what)
            attempt(partial(t.backend.close_device, volume.handle))
    same(t.client.get(volume.handle), found, f"{REPAIRED}, then get_volume")


@check(needs=("records",), target=Target.BACKEND)
def a_volume_whose_record_cannot_be_read_is_not_reported_as_deleted_while_it_is_there(t: CheckContext) -> None:
    """NotFound from a deletion is success: the orchestrator forgets the volume, and its space is lost for ever."""
    _, records = with_records(t, t.volume)
    for number in range(len(records)):
        _expect_deleted_or_refused(t, number)


def _expect_deleted_or_refused(t: CheckContext, number: int) -> None:
    before = t.resources()
    volume, records = with_records(t, t.volume)
    if number >= len(records):
        return  # the first volume of all wrote what belongs to no volume
    file, content = sorted(records.items())[number]
    file.write_bytes(b"\0" * len(content))
    what = f"{file.name} was overwritten with zeros, then delete_volume"
    _, error = attempt(lambda: t.backend.delete_volume(volume.handle, t.storage.secrets))
    if error and not isinstance(error, NotFound):
        file.write_bytes(content)
        return
    left = sorted(t.resources() - before)
    outcome = f"raised {describe_error(error)}" if error else "succeeded"
    expect(not left, f"{what}: {outcome}, but {left} remain")
    t.forget(volume)


@check(needs=("records", "devices"), data=True, target=Target.BACKEND)
def a_used_volume_is_not_blank_when_its_record_cannot_be_read(t: CheckContext) -> None:
    """Else it is formatted, and its data is lost."""
    volume, records = with_records(t, lambda: _formatted(t))
    for what in damaged(t, records):
        device, _ = attempt(lambda: open_device(t, volume))
        blank = device.blank if device else Blank.NEVER
        expect(blank is Blank.NEVER, f"{what}, then open_device of a used volume: Device.blank is {blank.name}")
        attempt(lambda: t.backend.close_device(volume.handle))


def _formatted(t: CheckContext) -> Volume:
    volume = t.volume()
    open_device(t, volume)
    for note in (t.backend.formatting, t.backend.formatted):
        given_secrets(t, note)(volume.handle)
    t.backend.close_device(volume.handle)
    return volume


@check(b.Snapshots, needs=("records",), target=Target.BACKEND)
def a_snapshot_whose_record_cannot_be_read_is_not_taken_for_absent(t: CheckContext) -> None:
    volume = t.volume()
    cut, records = with_records(t, lambda: wait_until_ready(t, t.snapshot(volume)))
    found = t.client.get_snapshot(cut.handle)
    for what in damaged(t, records):
        expect_not_absent(lambda: t.client.get_snapshot(cut.handle), "get_snapshot", what)
    same(t.client.get_snapshot(cut.handle), found, f"{REPAIRED}, then get_snapshot")


@check(b.GroupSnapshots, needs=("records",), target=Target.BACKEND)
def a_group_whose_record_cannot_be_read_is_not_taken_for_absent(t: CheckContext) -> None:
    volumes = [t.volume(), t.volume()]
    group, records = with_records(t, lambda: t.group(volumes))
    found = t.client.get_group(group.handle)
    for what in damaged(t, records):
        expect_not_absent(lambda: t.client.get_group(group.handle), "get_group_snapshot", what)
        for member in group.snapshots:
            expect_not_absent(partial(t.client.get_snapshot, member.handle), "get_snapshot of a member", what)
    same(t.client.get_group(group.handle), found, f"{REPAIRED}, then get_group_snapshot")


@check(b.Clone, needs=("records",), data=True, target=Target.BACKEND)
def a_clone_of_a_volume_whose_record_cannot_be_read_has_its_data_or_is_made_later(t: CheckContext) -> None:
    volume, records = with_records(t, lambda: source_volume(t))
    _expect_copies(t, volume, volume.size, damaged(t, records), "clone_volume")


@check(b.Snapshots, needs=("records",), data=True, target=Target.BACKEND)
def a_restore_of_a_snapshot_whose_record_cannot_be_read_has_its_data_or_is_made_later(t: CheckContext) -> None:
    volume = source_volume(t)
    cut, records = with_records(t, lambda: wait_until_ready(t, t.snapshot(volume)))
    _expect_copies(t, cut, volume.size, damaged(t, records), "restore_volume")


def _expect_copies(t: CheckContext, of: Volume | Snapshot, size: int, states: Iterator[str], method: str) -> None:
    """Require of a copy in each of these states the data of its source, or an error after which it can be made."""
    spec = t.spec(size=0, source=source(of))
    for what in states:
        made = expect_not_absent(lambda: t.create(spec), method, what)
        if made:
            t.expect_filled(made, SEED, size, f"{what}, then {method}")
            t.delete(made)
    made = retry(lambda: t.create(spec), f"{REPAIRED}, then {method}")
    t.expect_filled(made, SEED, size, f"{REPAIRED}, then {method}")


@check(b.Snapshots, needs=("records",), data=True, target=Target.BACKEND)
def a_snapshot_of_a_volume_whose_record_cannot_be_read_has_its_data_or_is_made_later(t: CheckContext) -> None:
    volume, records = with_records(t, lambda: source_volume(t))
    name = t.name("snapshot")
    for what in damaged(t, records):
        made = expect_not_absent(lambda: t.snapshot(volume, name), "create_snapshot", what)
        if made:
            t.delete(made)
    cut = wait_until_ready(t, retry(lambda: t.snapshot(volume, name), f"{REPAIRED}, then create_snapshot"))
    t.expect_filled(t.copy(cut), SEED, volume.size, f"{REPAIRED}, then a restore of a snapshot")
