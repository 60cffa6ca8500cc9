"""Pages of a listing that leave something out, or lose something between two of them, do not end it early."""

from __future__ import annotations

from typing import Any

from csi_multi.contract import backend as b

from ..assertions import same
from ..check import check
from ..context import CheckContext
from ..left_out import Make, between, foreign_snapshots, foreign_volumes, unreadable
from ..listings import Listing, snapshots, volumes

LAYOUT = "xooxxxxoxooooxox"  # o: one of ours; x: left out. Both ends, and more in a row than a page of 3 and one more
SIZES = (3, 2, 1)  # items of a page, if the storage has few others


def expect_all_listed(listing: Listing, ours: list[str], **only: Any) -> None:
    """Require that each of ours is listed once, and nobody is twice, for every size of a page."""
    small = listing.small_page()
    for limit in (*(small * one for one in SIZES), 0):
        found = listing.handles(limit, **only)
        listing.expect_all(ours, found, f"{limit} per page, beside what is left out{_filter(only)}")


def expect_deletions_between_pages_lose_nothing_else(listing: Listing, ours: list[str], **only: Any) -> None:
    """After the first page that ends with one of ours, delete that one, the item of the cursor, and the next one."""
    small = listing.small_page()
    for limit in (small * one for one in SIZES):
        order = [one for one in listing.handles(**only) if one in ours]
        found: list[str] = []
        gone: list[str] = []
        for page in listing.iterate_pages(limit, **only):
            found += [item.handle for item in page.items]
            if not gone and page.cursor and found and found[-1] in order[:-1]:
                at = order.index(found[-1])
                gone = order[at : at + 2]
                for handle in gone:
                    listing.delete(handle)
        listing.expect_once(found)
        ours = [one for one in ours if one not in gone]
        what = f"{limit} per page, where the last item of a page and the next one were deleted before the next page"
        listing.expect_all(ours, found, f"{what}{_filter(only)}")


def _filter(only: dict[str, Any]) -> str:
    return ", of one volume" if only else ""


@check(b.ListVolumes)
def pages_of_volumes_go_on_past_what_is_left_out_or_deleted(t: CheckContext) -> None:
    """Volumes of other owners, and volumes whose record is damaged, lie before, between and behind ours."""
    listing = volumes(t)
    with between(listing, LAYOUT, [*foreign_volumes(t), *unreadable(listing)]) as ours:
        expect_all_listed(listing, ours)
        expect_deletions_between_pages_lose_nothing_else(listing, ours)


def left_out_snapshots(t: CheckContext) -> list[Make]:
    """Return how to create snapshots of other owners, and damaged ones, which are of another volume."""
    return [*foreign_snapshots(t), *unreadable(snapshots(t))]


@check(b.ListSnapshots)
def pages_of_snapshots_go_on_past_what_is_left_out_or_deleted(t: CheckContext) -> None:
    listing = snapshots(t)
    with between(listing, LAYOUT, left_out_snapshots(t)) as ours:
        expect_all_listed(listing, ours)
        expect_deletions_between_pages_lose_nothing_else(listing, ours)


@check(b.ListSnapshots)
def pages_of_the_snapshots_of_a_volume_go_on_past_those_of_others(t: CheckContext) -> None:
    """With a source, the snapshots of other volumes are left out too."""
    origin, other = t.volume(), snapshots(t)
    listing = snapshots(t, origin)

    def of_another(name: str) -> Any:
        other.make(name)
        return lambda: None

    makes: list[Make] = [of_another, *left_out_snapshots(t)]
    with between(listing, LAYOUT, makes) as ours:
        expect_all_listed(listing, ours, source=origin.handle)
        for limit in SIZES:
            found = listing.handles(limit, source=origin.handle)
            same(sorted(found), sorted(ours), f"list_snapshots of one volume, {limit} per page")
        expect_deletions_between_pages_lose_nothing_else(listing, ours, source=origin.handle)
