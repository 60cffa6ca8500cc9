"""Group snapshots: all members or none, created and deleted together (csi-spec CreateVolumeGroupSnapshot)."""

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
from ..check import check
from ..context import CheckContext, pages
from ..counting import expect_as_before
from ..operations.base import wait_until_ready
from ..operations.create import SEED, as_ready, source_volume
from ..protocol import Target
from .sources import expect_success, is_served


def expect_unchanged(t: CheckContext, made: GroupSnapshot, what: str) -> None:
    """Require that the group and its members have not changed."""
    found = expect_success(f"{what}, then get_group_snapshot", t.client.get_group, made.handle)
    same(settled(found), settled(made), f"{what}, then get_group_snapshot")
    for member in made.snapshots:
        message = f"{what}, then get_snapshot of a member"
        same(
            as_ready(expect_success(message, t.client.get_snapshot, member.handle)),
            as_ready(member),
            message,
        )


def settled(group: GroupSnapshot) -> tuple[str, object, list[Snapshot]]:
    """Return what may not change. The contract does not define the order of members."""
    members = sorted((as_ready(one) for one in group.snapshots), key=lambda one: str(one.handle))
    return group.handle, group.created, members


def remaining(t: CheckContext, made: GroupSnapshot) -> list[str]:
    """Return the members that get_snapshot still finds."""
    found = []
    for member in made.snapshots:
        try:
            found.append(t.client.get_snapshot(member.handle).handle)
        except NotFound:
            continue
    return found


@check(b.GroupSnapshots)
def a_group_has_one_member_per_volume(t: CheckContext) -> None:
    volumes = t.volume(), t.volume()
    made = t.group(volumes)

    sources = sorted(one.source for one in made.snapshots)
    same(sources, sorted(one.handle for one in volumes), "create_group_snapshot: the sources of the members")
    for member in made.snapshots:
        same(member.group, made.handle, f"create_group_snapshot: Snapshot.group of member {member.handle!r}")
    expect(
        made.created.tzinfo is not None,
        f"create_group_snapshot: GroupSnapshot.created is {made.created!r}; the contract requires a time zone",
    )
    expect_unchanged(t, made, "create_group_snapshot")


@check(b.GroupSnapshots)
def a_group_is_deleted_with_its_members_and_nothing_else(t: CheckContext) -> None:
    volumes = source_volume(t), source_volume(t)
    alone = t.snapshot(volumes[0])
    before = t.resources()
    made = t.group(volumes)

    for _ in range(2):
        t.client.delete_group(made.handle)
        with t.refused(NotFound, what="get_group_snapshot after delete_group_snapshot"):
            t.client.get_group(made.handle)
        same(remaining(t, made), [], "delete_group_snapshot, then the members that get_snapshot finds")
    what = "delete_group_snapshot, then get_snapshot of a snapshot without a group"
    same(as_ready(expect_success(what, t.client.get_snapshot, alone.handle)), as_ready(alone), what)
    expect_as_before(t, before, "delete_group_snapshot")
    for volume in volumes:
        same(t.client.get(volume.handle), volume, "delete_group_snapshot, then get_volume of a source")


@check(b.GroupSnapshots)
def a_member_is_not_deleted_without_its_group(t: CheckContext) -> None:
    """csi-spec DeleteSnapshot: the backend refuses it with InvalidArgument, each of them and each time."""
    made = t.group([t.volume(), t.volume()])
    before = t.new_resources()

    for what in ("delete_snapshot of a member of a group", "delete_snapshot of a member of a group after a restart"):
        for member in made.snapshots:
            with t.refused(InvalidArgument, what=what):
                t.client.delete_snapshot(member.handle)
            same(t.new_resources(), before, f"{what}: refused, but the storage changed")
            expect_unchanged(t, made, what)
        t.client.restart()


@check(b.GroupSnapshots)
def the_members_of_a_group_have_its_time_and_its_owner(t: CheckContext) -> None:
    """They are of one point in time. A member without the owner would be foreign to a later deletion."""
    volumes = t.volume(), t.volume()
    made = t.group(volumes)

    for when in ("create_group_snapshot", "create_group_snapshot and a restart"):
        found = [("get_snapshot", t.client.get_snapshot(one.handle)) for one in made.snapshots]
        found += [("get_group_snapshot", one) for one in t.client.get_group(made.handle).snapshots]
        if b.ListSnapshots in t.features:
            own = {one.handle for one in made.snapshots}
            found += [("list_snapshots", one) for one in pages(t.client.list_snapshots) if one.handle in own]
        for method, member in [("create_group_snapshot", one) for one in made.snapshots] + found:
            what = f"{when}, then {method}: member {member.handle!r}"
            same(member.group, made.handle, f"{what}: Snapshot.group")
            same(member.created, made.created, f"{what}: Snapshot.created, against GroupSnapshot.created")
            owner, wanted = ((one.driver, one.cluster) for one in (member.stamp, made.stamp))
            same(owner, wanted, f"{what}: driver and cluster of its stamp")
        t.client.restart()


@check(b.GroupSnapshots)
def a_copy_of_a_member_survives_the_deletion_of_the_group_or_refuses_it(t: CheckContext) -> None:
    volume = source_volume(t)
    made = t.group([volume, t.volume()])
    member = next(one for one in made.snapshots if one.source == volume.handle)
    copy = t.copy(wait_until_ready(t, member))

    gone = is_served(t, t.client.delete_group, made.handle)
    what = f"delete_group_snapshot beside a copy of a member: {'served' if gone else 'refused'}"
    if gone:
        same(remaining(t, made), [], f"{what}, then the members that get_snapshot finds")
    else:
        expect_unchanged(t, made, what)
    same(expect_success(f"{what}, then get_volume", t.client.get, copy.handle), copy, f"{what}, then get_volume")
    if not t.no_data_reason():
        t.expect_filled(copy, SEED, volume.size, f"{what}, then the copy")


@check(b.GroupSnapshots)
def the_name_of_a_deleted_group_can_be_used_again(t: CheckContext) -> None:
    """The new group is of the later point in time, and of other volumes if those are requested."""
    volume, other, name = source_volume(t), t.volume(), t.name("group")
    first = t.group([volume, other], name)
    t.client.delete_group(first.handle)
    if not t.no_data_reason():
        t.fill(volume, "kit later")

    what = "create_group_snapshot under the name of a deleted group"
    again = expect_success(what, t.group, [volume], name)
    same([one.source for one in again.snapshots], [volume.handle], f"{what}: the sources of the members")
    expect(again.created >= first.created, f"{what}: GroupSnapshot.created is {again.created}, before the first group")
    expect_unchanged(t, again, what)
    if not t.no_data_reason():
        copy = t.copy(wait_until_ready(t, again.snapshots[0]))
        t.expect_filled(copy, "kit later", volume.size, f"{what}, then a volume restored from its member")


@check(b.GroupSnapshots)
def a_group_with_a_deleted_volume_is_not_created_at_all(t: CheckContext) -> None:
    volume, gone, name = t.volume(), t.volume(), t.name("group")
    t.client.delete(gone.handle)
    before = t.new_resources()

    what = "create_group_snapshot of a volume and one that was deleted"
    for order in ((volume, gone), (gone, volume)):
        with t.refused(NotFound, what=what):
            t.group(order, name)
        same(t.new_resources(), before, f"{what}: refused, but the storage changed")
        _without_snapshots(t, volume, what)
    if t.client.target is Target.BACKEND:
        with t.refused(NotFound, what=f"{what}: refused, then find_group_snapshot"):
            t.backend.find_group_snapshot(name)


def _without_snapshots(t: CheckContext, volume: Volume, what: str) -> None:
    if b.ListSnapshots in t.features:
        found = [one.handle for one in pages(t.client.list_snapshots, source=volume.handle)]
        same(found, [], f"{what}: refused, then the snapshots of the existing volume")


@check(b.GroupSnapshots)
def a_repeated_request_gets_the_same_group(t: CheckContext) -> None:
    """The volumes are a set and may be in another order. The request may also reach another process."""
    volumes, name = [t.volume(), t.volume()], t.name("group")
    made = t.group(volumes, name)
    before = t.new_resources()

    for when in ("repeated", "repeated after a restart in another order"):
        same(settled(t.group(volumes, name)), settled(made), f"create_group_snapshot, {when}")
        same(t.new_resources(), before, f"the storage after create_group_snapshot, {when}")
        expect_unchanged(t, made, f"create_group_snapshot, {when}")
        volumes.reverse()
        t.client.restart()


@check(b.GroupSnapshots)
def other_volumes_under_the_name_of_a_group_are_a_conflict(t: CheckContext) -> None:
    one, two, three, name = t.volume(), t.volume(), t.volume(), t.name("group")
    made = t.group([one, two], name)
    before = t.new_resources()

    for wanted in ([one], [one, three], [one, two, three]):
        what = f"create_group_snapshot of {len(wanted)} other volumes with a taken name"
        with t.refused(AlreadyExists, what=what):
            t.group(wanted, name)
        same(t.new_resources(), before, f"{what}: refused, but the storage changed")
        expect_unchanged(t, made, what)


@check(b.GroupSnapshots, target=Target.BACKEND)
def a_group_name_is_reported_as_taken_or_unknown(t: CheckContext) -> None:
    volume, name = t.volume(), t.name("group")
    made = t.group([volume], name)

    with t.refused(AlreadyExists, what="create_group_snapshot with a taken name"):
        again = GroupSnapshotRequest(stamp=made.stamp, sources=(volume.handle,), secrets=t.storage.secrets)
        t.register(t.backend.create_group_snapshot(again))
    for other in (t.name("group"), name[:-1], f"{name}0"):
        with t.refused(NotFound, what=f"find_group_snapshot({other!r}), a name that was never used"):
            t.backend.find_group_snapshot(other)
    found = t.backend.find_group_snapshot(name)
    same(settled(found), settled(made), "find_group_snapshot with the name of create_group_snapshot")
    t.backend.delete_group_snapshot(made.handle, t.storage.secrets)
    with t.refused(NotFound, what="find_group_snapshot after delete_group_snapshot"):
        t.backend.find_group_snapshot(name)
    with t.refused(NotFound, what="delete_group_snapshot, a second time"):
        t.backend.delete_group_snapshot(made.handle, t.storage.secrets)


@check(b.GroupSnapshots, data=True)
def the_members_of_a_group_hold_the_data_of_their_volumes(t: CheckContext) -> None:
    volumes = {one.handle: one for one in (t.volume(), t.volume())}
    for handle, volume in volumes.items():
        t.fill(volume, f"kit {handle}")
    made = t.group(volumes.values())
    for volume in volumes.values():
        t.fill(volume, "kit later")

    for member in made.snapshots:
        what = "a volume restored from a member of a group whose volumes were written afterwards"
        t.expect_filled(t.copy(wait_until_ready(t, member)), f"kit {member.source}", volumes[member.source].size, what)
