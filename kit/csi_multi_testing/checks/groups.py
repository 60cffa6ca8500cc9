"""Group snapshots: all members or none, made and removed together (csi-spec CreateVolumeGroupSnapshot)."""

from __future__ import annotations

from csi_multi.contract import (
    AlreadyExists,
    GroupSnapshot,
    GroupSnapshotRequest,
    InvalidArgument,
    NotFound,
    Snapshot,
    Volume,
)
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import On, check
from ..context import CheckContext, pages
from ..operations.base import ready
from ..operations.making import timeless
from .sources import answer


def unchanged(t: CheckContext, made: GroupSnapshot, what: str) -> None:
    """Demand the group as it was, and its members where snapshots are asked for."""
    found = answer(f"{what}, then get_group_snapshot", t.door.get_group, made.handle)
    same(settled(found), settled(made), f"{what}, then get_group_snapshot")
    for member in made.snapshots:
        told = f"{what}, then get_snapshot of a member"
        same(timeless(answer(told, t.door.get_snapshot, member.handle)), timeless(member), told)


def settled(group: GroupSnapshot) -> tuple[str, object, list[Snapshot]]:
    """Return what may not change. The contract says nothing about the order of members."""
    members = sorted((timeless(one) for one in group.snapshots), key=lambda one: str(one.handle))
    return group.handle, group.created, members


def remaining(t: CheckContext, made: GroupSnapshot) -> list[str]:
    """Return the members that get_snapshot still finds."""
    found = []
    for member in made.snapshots:
        try:
            found.append(t.door.get_snapshot(member.handle).handle)
        except NotFound:
            continue
    return found


@check(b.GroupSnapshots)
def a_group_has_a_member_of_every_volume(t: CheckContext) -> None:
    volumes = t.volume(), t.volume()
    made = t.group(volumes)

    sources = sorted(one.source for one in made.snapshots)
    same(sources, sorted(one.handle for one in volumes), "create_group_snapshot: the sources of the members")
    for member in made.snapshots:
        same(member.group, made.handle, f"create_group_snapshot: Snapshot.group of member {member.handle!r}")
    expect(
        made.created.tzinfo is not None,
        f"create_group_snapshot: GroupSnapshot.created is {made.created!r}, the rule wants a time with a time zone",
    )
    unchanged(t, made, "create_group_snapshot")


@check(b.GroupSnapshots)
def a_group_is_deleted_with_its_members_and_nothing_else(t: CheckContext) -> None:
    volumes = t.volume(), t.volume()
    alone = t.snapshot(volumes[0])
    before = t.new()
    made = t.group(volumes)

    for _ in range(2):
        t.door.delete_group(made.handle)
        with t.refused(NotFound, what="get_group_snapshot after delete_group_snapshot"):
            t.door.get_group(made.handle)
        same(remaining(t, made), [], "delete_group_snapshot, then the members that get_snapshot finds")
    what = "delete_group_snapshot, then get_snapshot of one that was cut alone"
    same(timeless(answer(what, t.door.get_snapshot, alone.handle)), timeless(alone), what)
    same(t.new(), before, "delete_group_snapshot, then what is on the storage")
    for volume in volumes:
        same(t.door.get(volume.handle), volume, "delete_group_snapshot, then get_volume of a source")


@check(b.GroupSnapshots)
def a_member_is_not_deleted_without_its_group(t: CheckContext) -> None:
    """csi-spec DeleteSnapshot: the backend refuses it with InvalidArgument."""
    made = t.group([t.volume()])
    before = t.new()

    what = "delete_snapshot of a member of a group"
    with t.refused(InvalidArgument, what=what):
        t.door.delete_snapshot(made.snapshots[0].handle)
    same(t.new(), before, f"{what}: refused, but the storage changed")
    unchanged(t, made, what)


@check(b.GroupSnapshots)
def a_group_with_a_volume_that_is_gone_is_not_cut_at_all(t: CheckContext) -> None:
    volume, gone, name = t.volume(), t.volume(), t.name("group")
    t.door.delete(gone.handle)
    before = t.new()

    what = "create_group_snapshot of a volume and one that was deleted"
    for order in ((volume, gone), (gone, volume)):
        with t.refused(NotFound, what=what):
            t.group(order, name)
        same(t.new(), before, f"{what}: refused, but the storage changed")
        _without_snapshots(t, volume, what)
    if t.door.on is On.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_group_snapshot"):
            t.backend.find_group_snapshot(name)


def _without_snapshots(t: CheckContext, volume: Volume, what: str) -> None:
    if b.ListSnapshots in t.features:
        found = [one.handle for one in pages(t.door.list_snapshots, source=volume.handle)]
        same(found, [], f"{what}: refused, then the snapshots of the volume that is there")


@check(b.GroupSnapshots)
def a_repeated_request_gets_the_same_group(t: CheckContext) -> None:
    """Its volumes are a set: they may come in another order. And another process may be asked."""
    volumes, name = [t.volume(), t.volume()], t.name("group")
    made = t.group(volumes, name)
    before = t.new()

    for when in ("repeated", "repeated after a restart in another order"):
        same(settled(t.group(volumes, name)), settled(made), f"create_group_snapshot, {when}")
        same(t.new(), before, f"the storage after create_group_snapshot, {when}")
        unchanged(t, made, f"create_group_snapshot, {when}")
        volumes.reverse()
        t.door.restart()


@check(b.GroupSnapshots)
def other_volumes_under_the_name_of_a_group_are_a_conflict(t: CheckContext) -> None:
    one, two, three, name = t.volume(), t.volume(), t.volume(), t.name("group")
    made = t.group([one, two], name)
    before = t.new()

    for wanted in ([one], [one, three], [one, two, three]):
        what = f"create_group_snapshot of {len(wanted)} other volumes with a name that is taken"
        with t.refused(AlreadyExists, what=what):
            t.group(wanted, name)
        same(t.new(), before, f"{what}: refused, but the storage changed")
        unchanged(t, made, what)


@check(b.GroupSnapshots, on=On.BACKEND)
def a_group_tells_the_truth_about_its_name(t: CheckContext) -> None:
    volume, name = t.volume(), t.name("group")
    made = t.group([volume], name)

    with t.refused(AlreadyExists, what="create_group_snapshot with a name that is taken"):
        again = GroupSnapshotRequest(stamp=made.stamp, sources=(volume.handle,), secrets=t.storage.secrets)
        t.made(t.backend.create_group_snapshot(again))
    for other in (t.name("group"), name[:-1], f"{name}0"):
        with t.refused(NotFound, what=f"find_group_snapshot({other!r}), a name that nobody asked for"):
            t.backend.find_group_snapshot(other)
    found = t.backend.find_group_snapshot(name)
    same(settled(found), settled(made), "find_group_snapshot with the name of create_group_snapshot")
    t.backend.delete_group_snapshot(made.handle, t.storage.secrets)
    with t.refused(NotFound, what="find_group_snapshot after delete_group_snapshot"):
        t.backend.find_group_snapshot(name)
    with t.refused(NotFound, what="delete_group_snapshot, a second time"):
        t.backend.delete_group_snapshot(made.handle, t.storage.secrets)


@check(b.GroupSnapshots, data=True)
def the_members_of_a_group_hold_the_bytes_of_their_volumes(t: CheckContext) -> None:
    volumes = {one.handle: one for one in (t.volume(), t.volume())}
    for handle, volume in volumes.items():
        t.fill(volume, f"kit {handle}")
    made = t.group(volumes.values())
    for volume in volumes.values():
        t.fill(volume, "kit later")

    for member in made.snapshots:
        what = "a volume restored from a member of a group whose volumes were written afterwards"
        t.expect_filled(t.copy(ready(t, member)), f"kit {member.source}", volumes[member.source].size, what)
