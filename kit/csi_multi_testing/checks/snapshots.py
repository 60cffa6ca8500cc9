"""Snapshots: created once per name, unchanging, and kept as csi-spec DeleteVolume requires."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from csi_multi.contract import AlreadyExists, NotFound, Snapshot, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckSkipped, expect, same
from ..check import check
from ..context import CheckContext, pages
from ..listings import snapshots
from ..operations.base import wait_until_ready
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from .sources import expect_success, is_served, snapshot_as_source

ZONES = ("KIT-14", "KIT+12")  # 14 hours before UTC, and 12 behind it
SKEW = timedelta(minutes=10)  # between the clocks of two machines; a wrong time zone differs by more


def expect_unchanged(t: CheckContext, made: Snapshot, what: str) -> None:
    what = f"{what}, then get_snapshot"
    same(as_ready(expect_success(what, t.client.get_snapshot, made.handle)), as_ready(made), what)


@check(b.Snapshots)
def a_snapshot_can_be_created_found_and_deleted(t: CheckContext) -> None:
    """The deletion can be repeated: the first answer may have been lost."""
    volume = t.volume()
    made = t.snapshot(volume)

    same(made.source, volume.handle, "create_snapshot: the source")
    same(made.group, "", "create_snapshot: the group")
    expect_unchanged(t, made, "create_snapshot")
    for _ in range(2):
        t.client.delete_snapshot(made.handle)
        with t.refused(NotFound, what="get_snapshot after delete_snapshot"):
            t.client.get_snapshot(made.handle)
    same(t.client.get(volume.handle), volume, "delete_snapshot, then get_volume of its source")


@check(b.Snapshots, target=Target.BACKEND)
def an_unknown_snapshot_is_not_found(t: CheckContext) -> None:
    name = t.name("snapshot")
    made = t.snapshot(t.volume(), name)
    for other in (t.name("snapshot"), name[:-1], f"{name}0"):
        with t.refused(NotFound, what=f"find_snapshot({other!r}), a name that was never used, beside {name!r}"):
            t.backend.find_snapshot(other)

    same(
        as_ready(t.backend.find_snapshot(name)),
        as_ready(made),
        "find_snapshot with the name of create_snapshot",
    )
    t.backend.delete_snapshot(made.handle, t.storage.secrets)
    with t.refused(NotFound, what="find_snapshot after delete_snapshot"):
        t.backend.find_snapshot(name)
    with t.refused(NotFound, what="delete_snapshot, a second time"):
        t.backend.delete_snapshot(made.handle, t.storage.secrets)


@check(b.Snapshots)
def a_repeated_request_gets_the_same_snapshot(t: CheckContext) -> None:
    """Also with the same creation time, and from another process."""
    volume, name = t.volume(), t.name("snapshot")
    made = t.snapshot(volume, name)
    before = t.new_resources()

    for when in ("repeated", "repeated after a restart"):
        same(as_ready(t.snapshot(volume, name)), as_ready(made), f"create_snapshot, {when}")
        same(t.new_resources(), before, f"the storage after create_snapshot, {when}")
        expect_unchanged(t, made, f"create_snapshot, {when}")
        t.client.restart()


@check(b.Snapshots)
def another_volume_under_the_name_of_a_snapshot_is_a_conflict(t: CheckContext) -> None:
    volume, other, name = t.volume(), t.volume(), t.name("snapshot")
    made = t.snapshot(volume, name)
    before = t.new_resources()

    what = "create_snapshot of another volume with a taken name"
    with t.refused(AlreadyExists, what=what):
        t.snapshot(other, name)
    same(t.new_resources(), before, f"{what}: refused, but the storage changed")
    expect_unchanged(t, made, what)
    same(as_ready(t.snapshot(volume, name)), as_ready(made), f"{what}, then the first request again")


@check(b.Snapshots)
def a_snapshot_of_a_deleted_volume_is_refused(t: CheckContext) -> None:
    volume, name = t.volume(), t.name("snapshot")
    t.client.delete(volume.handle)
    before = t.new_resources()

    what = "create_snapshot of a volume that was deleted"
    with t.refused(NotFound, what=what):
        t.snapshot(volume, name)
    same(t.new_resources(), before, f"{what}: refused, but the storage changed")
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_snapshot"):
            t.backend.find_snapshot(name)


@check(b.Snapshots)
def a_snapshot_has_its_creation_time(t: CheckContext) -> None:
    volume = t.volume()
    earliest = datetime.now(UTC)
    made = t.snapshot(volume).created

    what = f"create_snapshot: Snapshot.created is {made!r}"
    expect(
        isinstance(made, datetime) and made.tzinfo is not None, f"{what}, the contract requires a time with a time zone"
    )
    expect(
        made > earliest - SKEW,
        f"{what}, {earliest - made} before the request; the contract requires the creation time of the snapshot",
    )
    expect(
        made < datetime.now(UTC) + SKEW,
        f"{what}, which is in the future; the contract requires the creation time of the snapshot",
    )


@contextmanager
def time_zone(name: str) -> Iterator[None]:
    """Let this process have a time zone, as POSIX writes it, in the block: most test machines have UTC."""
    before = os.environ.get("TZ")
    try:
        os.environ["TZ"] = name
        time.tzset()
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


@check(b.Snapshots, target=Target.BACKEND)
def the_creation_time_of_a_snapshot_is_the_same_in_every_time_zone(t: CheckContext) -> None:
    """Nodes and controllers may have different ones."""
    volume = t.volume()
    for zone, other in (ZONES, ZONES[::-1]):
        earliest = datetime.now(UTC)
        with time_zone(zone):
            made = t.snapshot(volume)
        what = f"create_snapshot in the time zone {zone}: Snapshot.created is {made.created!r}"
        expect(earliest - SKEW < made.created < datetime.now(UTC) + SKEW, f"{what}, it was {earliest}")
        for where in (zone, other):
            with time_zone(where):
                t.client.restart()
                found = t.client.get_snapshot(made.handle).created
            same(found, made.created, f"{what}, then get_snapshot in the time zone {where}: Snapshot.created")


@check(b.Snapshots)
def the_size_of_a_snapshot_is_enough_to_restore_it(t: CheckContext) -> None:
    """csi-spec CreateSnapshot: size_bytes is the minimum size of a volume made from it."""
    volume = source_volume(t)
    made = wait_until_ready(t, t.snapshot(volume))
    message = f"create_snapshot of a volume of {volume.size} bytes: Snapshot.size is {made.size}"
    expect(
        0 < made.size <= volume.size,
        f"{message}, the contract requires the smallest volume that can be restored from it",
    )

    what = f"{message}, restore_volume with exactly that size"
    copy = expect_success(what, t.copy, made, size=made.size, limit=made.size)
    same(copy.size, made.size, f"{what}: its size")
    if made.size == volume.size and not t.no_data_reason():
        t.expect_filled(copy, SEED, volume.size, what)


@check(b.Snapshots, data=True)
def a_snapshot_keeps_its_data_when_its_volume_is_written(t: CheckContext) -> None:
    volume = source_volume(t)
    made = t.snapshot(volume)
    t.fill(volume, "kit later")

    copy = t.copy(wait_until_ready(t, made))
    t.expect_filled(copy, SEED, volume.size, "a snapshot of a volume that was written afterwards, restored")
    t.expect_filled(volume, "kit later", volume.size, "a volume that was written after a snapshot of it was created")


@check(b.Snapshots, data=True)
def deleting_a_snapshot_keeps_the_data_of_others(t: CheckContext) -> None:
    """Three snapshots with writes between them; the second one is deleted."""
    volume, made = source_volume(t), {}
    for seed in (SEED, "kit second", "kit third"):
        t.fill(volume, seed)
        made[seed] = snapshot_as_source(t, volume)

    gone = is_served(t, t.client.delete_snapshot, made["kit second"].handle)
    what = f"delete_snapshot of the second of three: {'served' if gone else 'refused'}"
    for seed in (SEED, "kit third"):
        copy = expect_success(f"{what}, then restore_volume from another", t.copy, made[seed])
        t.expect_filled(copy, seed, volume.size, f"{what}, then a volume restored from another")
    t.expect_filled(volume, "kit third", volume.size, f"{what}, then the volume")


@check(b.Snapshots)
def deleting_a_volume_keeps_its_snapshots_or_is_refused(t: CheckContext) -> None:
    """csi-spec DeleteVolume: refused without a change, or served with snapshots that remain complete."""
    volume = source_volume(t)
    made = snapshot_as_source(t, volume)
    before = t.new_resources()

    gone = is_served(t, t.client.delete, volume.handle)
    what = f"delete_volume of a volume that has a snapshot: {'served' if gone else 'refused'}"
    if not gone:
        same(
            expect_success(f"{what}, then get_volume", t.client.get, volume.handle), volume, f"{what}, then get_volume"
        )
        same(t.new_resources(), before, f"{what}, but the storage changed")
        if not t.no_data_reason():
            t.expect_filled(volume, SEED, volume.size, f"{what}, then the volume")
    expect_unchanged(t, made, what)
    if b.ListSnapshots in t.features:
        listed = [one.handle for one in pages(t.client.list_snapshots) if one.handle == made.handle]
        same(listed, [made.handle], f"{what}, then the snapshot in list_snapshots")
    copy = expect_success(f"{what}, then restore_volume", t.copy, made)
    if not t.no_data_reason():
        t.expect_filled(copy, SEED, volume.size, f"{what}, then a volume restored from the snapshot")


@check(b.Snapshots)
def a_volume_made_anew_has_no_snapshot_of_an_earlier_one(t: CheckContext) -> None:
    """A handle that follows from the name comes again; see `ids.earlier`."""
    _expect_another(t, lambda name, _: t.volume(name), "created again")


@check(b.Snapshots)
def a_volume_restored_under_its_old_name_has_no_snapshot_of_the_earlier_one(t: CheckContext) -> None:
    """It shares data with the earlier one, and is another volume all the same."""
    _expect_another(t, lambda name, snapshot: t.copy(snapshot, name), "restored from it under the same name")


def _expect_another(t: CheckContext, make: Callable[[str, Snapshot], Volume], how: str) -> None:
    volume_name, name = t.name(), t.name("snapshot")
    earlier = t.volume(volume_name)
    made = wait_until_ready(t, t.snapshot(earlier, name))
    if not is_served(t, t.client.delete, earlier.handle):
        raise CheckSkipped("delete_volume refuses a volume that has snapshots, which the contract allows")
    volume = make(volume_name, made)

    what = f"the source of a snapshot whose volume was deleted and {how}"
    source = expect_success(what, t.client.get_snapshot, made.handle).source
    expect(source != volume.handle, f"{what}: found {source!r}, the new volume")
    if t.client.target is Target.BACKEND and isinstance(t.backend, b.NodeLocal):
        same(t.backend.node_of(source), t.backend.node_of(volume.handle), f"{what}: its node")
    with t.refused(AlreadyExists, what="create_snapshot of the new volume with the name of that snapshot"):
        t.snapshot(volume, name)
    if b.ListSnapshots in t.features:
        same(snapshots(t, volume).handles(source=volume.handle), [], "list_snapshots of the new volume")
        same(snapshots(t, volume).handles(source=source), [made.handle], f"list_snapshots of {what}")
