"""Listings: complete, in a stable order, page by page while items are created and deleted (csi-spec ListVolumes)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from csi_multi.contract import InvalidToken, Snapshot
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..listings import Listing, snapshots, volumes

UNKNOWN_CURSOR = "?/ nobody's \N{SNOWMAN}"


def expect_complete(listing: Listing) -> None:
    ours = [one.handle for one in [*listing.create_items(4), *listing.create_similar()]]
    small = listing.small_page()
    orders = {}
    for limit in (small, 2 * small, 0, 0):
        what = f"{limit} per page" if limit else "all at once"
        found = listing.handles(limit)
        listing.expect_all(ours, found, what)
        orders[what] = [one for one in found if one in ours]
        same(orders[what], next(iter(orders.values())), f"{listing.method}, {what}: its order, which must be stable")


@check(b.ListVolumes)
def every_volume_is_listed_exactly_once(t: CheckContext) -> None:
    expect_complete(volumes(t))


@check(b.ListSnapshots)
def every_snapshot_is_listed_exactly_once(t: CheckContext) -> None:
    expect_complete(snapshots(t))


def expect_complete_during_changes(listing: Listing) -> None:
    """Between two pages delete listed items, also the one of the cursor, and create new ones."""
    ours = [one.handle for one in listing.create_items(5)]
    gone: list[str] = []
    found: list[str] = []
    for page in listing.iterate_pages(listing.small_page()):
        found += [item.handle for item in page.items]
        listed = [one for one in found if one in ours]
        if len(listed) >= 2 and not gone:
            gone = [listed[0], listed[-1]]
            for handle in gone:
                listing.delete(handle)
            for text in ("a", "z"):  # before and after the others in any order
                listing.make(listing.t.name(text))
    listing.expect_once(found)
    listing.expect_all(
        [one for one in ours if one not in gone], found, "while others were created and deleted between pages"
    )


@check(b.ListVolumes)
def volumes_can_be_listed_while_others_are_created_and_deleted(t: CheckContext) -> None:
    expect_complete_during_changes(volumes(t))


@check(b.ListSnapshots)
def snapshots_can_be_listed_while_others_are_created_and_deleted(t: CheckContext) -> None:
    expect_complete_during_changes(snapshots(t))


def expect_empty_listing_works(listing: Listing) -> None:
    """Foreign items may be on the storage or not."""
    before = listing.handles()
    made = listing.make(listing.t.name()).handle
    expect(made in listing.handles(), f"{listing.method} does not list {made}, the only item that was created")
    listing.delete(made)
    after = listing.handles(1 + len(before))
    expect(made not in after, f"{listing.method} still lists {made}, which was deleted")


@check(b.ListVolumes)
def volumes_can_be_listed_when_there_are_none(t: CheckContext) -> None:
    expect_empty_listing_works(volumes(t))


@check(b.ListSnapshots)
def snapshots_can_be_listed_when_there_are_none(t: CheckContext) -> None:
    expect_empty_listing_works(snapshots(t))


def expect_same_as_get(listing: Listing) -> None:
    made = listing.make(listing.t.name()).handle
    shown, asked = listing.find(made), listing.get(made)
    same(settled(shown), settled(asked), f"{listing.method} about {made}, compared with the answer of its get method")


def settled(one: Any) -> Any:
    """Return a snapshot with ready=True: that field may change between two reads."""
    return replace(one, ready=True) if isinstance(one, Snapshot) else one


@check(b.ListVolumes)
def a_listed_volume_equals_the_answer_of_get_volume(t: CheckContext) -> None:
    expect_same_as_get(volumes(t))


@check(b.ListSnapshots)
def a_listed_snapshot_equals_the_answer_of_get_snapshot(t: CheckContext) -> None:
    expect_same_as_get(snapshots(t))


def first_cursor(listing: Listing) -> tuple[list[str], str]:
    """Make two items, read pages until one of them is listed, and return the listed handles and the cursor."""
    ours = {one.handle for one in listing.create_items(2)}
    found: list[str] = []
    for page in listing.iterate_pages(listing.small_page()):
        found += [item.handle for item in page.items]
        if ours & set(found):
            break
    expect(page.cursor or ours <= set(found), f"{listing.method} ended before every item was listed")
    return found, page.cursor


def expect_cursor_refused(listing: Listing) -> None:
    """A changed cursor is refused, and so is one that no backend returns."""
    _, cursor = first_cursor(listing)
    head, slash, _ = cursor.partition("/")  # over CSI: the instance, so that the rest reaches its backend
    for odd in (head + slash + UNKNOWN_CURSOR if slash else UNKNOWN_CURSOR, " ", UNKNOWN_CURSOR * 6):
        with listing.t.refused(InvalidToken, what=f"{listing.method} after cursor {odd!r}, which no listing returned"):
            listing.read(odd, 1)


@check(b.ListVolumes)
def an_unknown_volume_cursor_is_refused(t: CheckContext) -> None:
    expect_cursor_refused(volumes(t))


@check(b.ListSnapshots)
def an_unknown_snapshot_cursor_is_refused(t: CheckContext) -> None:
    expect_cursor_refused(snapshots(t))


def expect_cursor_survives(listing: Listing) -> None:
    found, cursor = first_cursor(listing)
    wanted = listing.handles()
    listing.t.client.restart()
    if cursor:
        found += [item.handle for page in listing.iterate_pages(0, cursor) for item in page.items]
    listing.expect_once(found)
    listing.expect_all(wanted, found, "continued after a restart")


@check(b.ListVolumes)
def a_volume_cursor_survives_a_restart(t: CheckContext) -> None:
    expect_cursor_survives(volumes(t))


@check(b.ListSnapshots)
def a_snapshot_cursor_survives_a_restart(t: CheckContext) -> None:
    expect_cursor_survives(snapshots(t))


@check(b.ListSnapshots)
def snapshots_can_be_listed_by_their_source(t: CheckContext) -> None:
    one, other = t.volume(), t.volume()
    mine = sorted([t.snapshot(one).handle, t.snapshot(one).handle])
    t.snapshot(other)

    for limit in (1, 0):
        found = sorted(snapshots(t, one).handles(limit, source=one.handle))
        same(found, mine, "list_snapshots of one volume, while another volume has a snapshot")


@check(b.ListSnapshots)
def a_volume_without_snapshots_has_an_empty_list(t: CheckContext) -> None:
    with_snapshot, without, deleted = t.volume(), t.volume(), t.volume()
    t.snapshot(with_snapshot)
    t.client.delete(deleted.handle)

    for what, source in (
        ("has none", without.handle),
        ("was deleted", deleted.handle),
        ("never existed", "no-such-volume"),
    ):
        same(snapshots(t, with_snapshot).handles(source=source), [], f"list_snapshots of a volume that {what}")


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
