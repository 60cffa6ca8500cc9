"""Listings: complete, in a stable order, page by page while things come and go (csi-spec ListVolumes)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from csi_multi.contract import InvalidToken, Snapshot
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..listings import Listing, snapshots, volumes

FOREIGN = "?/ nobody's \N{SNOWMAN}"


def complete(listing: Listing) -> None:
    ours = [one.handle for one in listing.make_some(4)]
    small = listing.small_page()
    orders = {}
    for limit in (small, 2 * small, 0, 0):
        what = f"{limit} per page" if limit else "all at once"
        found = listing.handles(limit)
        listing.expect_all(ours, found, what)
        orders[what] = [one for one in found if one in ours]
        same(orders[what], next(iter(orders.values())), f"{listing.method}, {what}: its order, which is to be stable")


@check(b.ListVolumes)
def every_volume_is_listed_exactly_once(t: CheckContext) -> None:
    complete(volumes(t))


@check(b.ListSnapshots)
def every_snapshot_is_listed_exactly_once(t: CheckContext) -> None:
    complete(snapshots(t))


def steady(listing: Listing) -> None:
    """Between two pages delete what was seen, the item that the cursor points at too, and add some."""
    ours = [one.handle for one in listing.make_some(5)]
    gone: list[str] = []
    found: list[str] = []
    for page in listing.walk(listing.small_page()):
        found += [item.handle for item in page.items]
        seen = [one for one in found if one in ours]
        if len(seen) >= 2 and not gone:
            gone = [seen[0], seen[-1]]
            for handle in gone:
                listing.delete(handle)
            for text in ("a", "z"):  # before and after, in whatever order they stand
                listing.make(listing.t.name(text))
    listing.expect_once(found)
    listing.expect_all([one for one in ours if one not in gone], found, "while others came and went between pages")


@check(b.ListVolumes)
def volumes_can_be_listed_while_others_are_created_and_deleted(t: CheckContext) -> None:
    steady(volumes(t))


@check(b.ListSnapshots)
def snapshots_can_be_listed_while_others_are_created_and_deleted(t: CheckContext) -> None:
    steady(snapshots(t))


def ending(listing: Listing) -> None:
    """Whether anything is there or not; somebody else may have put something there."""
    before = listing.handles()
    made = listing.make(listing.t.name()).handle
    expect(made in listing.handles(), f"{listing.method} does not show {made}, the only one that was made")
    listing.delete(made)
    after = listing.handles(1 + len(before))
    expect(made not in after, f"{listing.method} still shows {made}, which was deleted")


@check(b.ListVolumes)
def volumes_can_be_listed_when_there_are_none(t: CheckContext) -> None:
    ending(volumes(t))


@check(b.ListSnapshots)
def snapshots_can_be_listed_when_there_are_none(t: CheckContext) -> None:
    ending(snapshots(t))


def agreeing(listing: Listing) -> None:
    made = listing.make(listing.t.name()).handle
    shown, asked = listing.find(made), listing.get(made)
    same(settled(shown), settled(asked), f"{listing.method} about {made}, compared with what it is when asked for")


def settled(one: Any) -> Any:
    """A snapshot may become ready between two questions."""
    return replace(one, ready=True) if isinstance(one, Snapshot) else one


@check(b.ListVolumes)
def a_listed_volume_equals_the_answer_of_get_volume(t: CheckContext) -> None:
    agreeing(volumes(t))


@check(b.ListSnapshots)
def a_listed_snapshot_equals_the_answer_of_get_snapshot(t: CheckContext) -> None:
    agreeing(snapshots(t))


def first_cursor(listing: Listing) -> tuple[list[str], str]:
    """Make two items, read until one of them was there, and return what was shown and the cursor."""
    ours = {one.handle for one in listing.make_some(2)}
    found: list[str] = []
    for page in listing.walk(listing.small_page()):
        found += [item.handle for item in page.items]
        if ours & set(found):
            break
    expect(page.cursor or ours <= set(found), f"{listing.method} ended before everything was shown")
    return found, page.cursor


def strict(listing: Listing) -> None:
    """A cursor of ours that was altered is refused, as is one that says nothing."""
    _, cursor = first_cursor(listing)
    head, slash, _ = cursor.partition("/")  # over the wire: the instance, so that the rest reaches its backend
    for odd in (head + slash + FOREIGN if slash else FOREIGN, " ", FOREIGN * 6):
        with listing.t.refused(InvalidToken, what=f"{listing.method} after cursor {odd!r}, which nobody issued"):
            listing.read(odd, 1)


@check(b.ListVolumes)
def an_unknown_volume_cursor_is_refused(t: CheckContext) -> None:
    strict(volumes(t))


@check(b.ListSnapshots)
def an_unknown_snapshot_cursor_is_refused(t: CheckContext) -> None:
    strict(snapshots(t))


def lasting(listing: Listing) -> None:
    found, cursor = first_cursor(listing)
    wanted = listing.handles()
    listing.t.client.restart()
    if cursor:
        found += [item.handle for page in listing.walk(0, cursor) for item in page.items]
    listing.expect_once(found)
    listing.expect_all(wanted, found, "continued by the next process")


@check(b.ListVolumes)
def a_volume_cursor_survives_a_restart(t: CheckContext) -> None:
    lasting(volumes(t))


@check(b.ListSnapshots)
def a_snapshot_cursor_survives_a_restart(t: CheckContext) -> None:
    lasting(snapshots(t))


@check(b.ListSnapshots)
def snapshots_can_be_listed_by_their_source(t: CheckContext) -> None:
    one, other = t.volume(), t.volume()
    mine = sorted([t.snapshot(one).handle, t.snapshot(one).handle])
    t.snapshot(other)

    for limit in (1, 0):
        found = sorted(snapshots(t, one).handles(limit, source=one.handle))
        same(found, mine, "list_snapshots of one volume, where another one has a snapshot, too")


@check(b.ListSnapshots)
def a_volume_without_snapshots_has_an_empty_list(t: CheckContext) -> None:
    cut, bare, gone = t.volume(), t.volume(), t.volume()
    t.snapshot(cut)
    t.client.delete(gone.handle)

    for what, source in (("has none", bare.handle), ("was deleted", gone.handle), ("never was", "no-such-volume")):
        same(snapshots(t, cut).handles(source=source), [], f"list_snapshots of a volume that {what}")


@check(b.ListSnapshots, b.GroupSnapshots)
def group_members_are_listed_with_their_group(t: CheckContext) -> None:
    source_volume = t.volume()
    group = t.group([source_volume])
    for member in group.snapshots:
        shown = snapshots(t, source_volume).find(member.handle)
        same(
            settled(shown),
            settled(member),
            "list_snapshots about a member of a group, compared with the group's answer",
        )
