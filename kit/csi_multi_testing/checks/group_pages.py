"""Lists of snapshots of which some are members of groups: names of every length and order, in pages of every size."""

from __future__ import annotations

from collections.abc import Iterator

from csi_multi.contract import GroupSnapshot
from csi_multi.contract import backend as b

from ..assertions import expect, same
from ..check import check
from ..context import CheckContext
from ..listings import snapshots
from .paging import SIZES

LENGTHS = (20, 37, 40, 43, 44, 63, 100)  # bytes of a name: orchestrators' have 41 to 50, and long ones may be hashed
LETTERS = "az"  # a name sorts before and after the others


def of_length(t: CheckContext, letter: str, length: int) -> str:
    """Return a new name that begins with the letter, of this length or as short as it can be."""
    name = t.name(letter)
    return letter * (length - len(name)) + name


def some_groups(t: CheckContext) -> Iterator[GroupSnapshot]:
    volumes = t.volume(), t.volume()
    for number, length in enumerate(LENGTHS):
        yield t.group(volumes, of_length(t, LETTERS[number % 2], length))


@check(b.GroupSnapshots, b.ListSnapshots)
def pages_hold_all_snapshots_in_and_outside_of_groups_once(t: CheckContext) -> None:
    groups = list(some_groups(t))
    listing = snapshots(t)
    alone = [listing.make(of_length(t, letter, length)).handle for letter in LETTERS for length in (20, 41, 100)]
    whole = listing.handles()
    listing.expect_all(alone, whole, "beside groups")
    members = {one.handle for group in groups for one in group.snapshots}
    listed = members & set(whole)
    expect(listed in (members, set()), f"list_snapshots lists {len(listed)} of {len(members)} members of groups")
    small = listing.small_page()
    for limit in (small * one for one in SIZES):
        same(listing.handles(limit), whole, f"list_snapshots, {limit} per page, beside groups with names of any length")
