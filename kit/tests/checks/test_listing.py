"""Backends with broken listings, and the checks that find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import listing
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InvalidToken, NotFound, Page, PageRequest, Snapshot, Volume, leaf


class Paged(MemoryBackend):
    """Cuts its pages itself: the defects below are about that, for volumes and snapshots alike."""

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self.cut(super().list_volumes(PageRequest()).items, page)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return self.cut(super().list_snapshots(PageRequest(), source).items, page)

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        """Return a page; the cursor is the number of items before it, as in many a first draft."""
        try:
            start = int(page.cursor or 0)
        except ValueError:
            raise InvalidToken(f"{page.cursor!r} is not ours") from None
        end = start + page.limit if page.limit else len(rows)
        return Page(items=tuple(rows[start:end]), cursor=str(end) if end < len(rows) else "")


class Inclusive(Paged):
    """Begins a page with the last item of the one before, if there is room for more."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        rest = [one for one in rows if one.handle > page.cursor or (page.limit != 1 and one.handle == page.cursor)]
        chosen = rest[: page.limit or None]
        return Page(items=tuple(chosen), cursor=chosen[-1].handle if len(chosen) < len(rest) else "")


class Skipping(Paged):
    """Takes the first item of the next page for its cursor, and goes on after it."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        rest = [one for one in rows if one.handle > page.cursor]
        chosen = rest[: page.limit or None]
        return Page(items=tuple(chosen), cursor=rest[len(chosen)].handle if len(chosen) < len(rest) else "")


class SortingFiles(Paged):
    """Sorts the names of its files, and compares the cursor without their suffix: v-1.json comes before v.json."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        rest = sorted((one for one in rows if one.handle > page.cursor), key=lambda one: f"{one.handle}.json")
        chosen = rest[: page.limit or None]
        return Page(items=tuple(chosen), cursor=chosen[-1].handle if len(chosen) < len(rest) else "")


class Generous(Paged):
    """Gives one more than asked for."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        return super().cut(rows, replace(page, limit=page.limit and page.limit + 1))


class Wavering(Paged):
    """Has its items in the order of a hash table, of which there is a new one with every call."""

    turns = 0

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        self.turns += 1
        return super().cut(rows if self.turns % 2 else rows[::-1], page)


class Endless(Paged):
    """Has always a next page."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        found = super().cut(rows, page)
        return replace(found, cursor=found.cursor or str(int(page.cursor or 0) + 1 + len(rows)))


class Wordy(Paged):
    """Uses requested names for cursors, which may be longer than tokens."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        rest = sorted((one for one in rows if one.stamp.name > page.cursor), key=lambda one: one.stamp.name)
        chosen = rest[: page.limit or None]
        return Page(items=tuple(chosen), cursor=chosen[-1].stamp.name if len(chosen) < len(rest) else "")


class Cautious(Paged):
    """Gives up when something has changed since the listing began."""

    seen: Any = ()

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        if not page.cursor:
            self.seen = rows
        elif self.seen != rows:
            raise InvalidToken("something has changed; list again from the start")
        return super().cut(rows, page)


class Trusting(Paged):
    """Compares any cursor with its handles."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        rest = [one for one in rows if one.handle > page.cursor]
        chosen = rest[: page.limit or None]
        return Page(items=tuple(chosen), cursor=chosen[-1].handle if len(chosen) < len(rest) else "")


class Remembering(Trusting):
    """Keeps in memory where its cursors lead."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.places = {"": ""}

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        if page.cursor not in self.places:
            raise InvalidToken(f"{page.cursor!r} is not known")
        found = super().cut(rows, replace(page, cursor=self.places[page.cursor]))
        if not found.cursor:
            return found
        key = str(len(self.places))
        self.places[key] = found.cursor
        return replace(found, cursor=key)


class Empty(Paged):
    """Fails before the first item is there: the pool does not exist yet."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        if not rows:
            raise NotFound("pool 'kit' does not exist")
        return super().cut(rows, page)


class Brief(Paged):
    """Lists handles, and little else."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        found = super().cut(rows, page)
        return replace(found, items=tuple(replace(one, size=0) for one in found.items))


class Unfiltered(MemoryBackend):
    """Does not look at the source."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return super().list_snapshots(page)


class Looking(MemoryBackend):
    """Wants the source to be there."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        if source is not None:
            self.get_volume(source)
        return super().list_snapshots(page, source)


class Alike(MemoryBackend):
    """Compares only how the source's name begins."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        rows = super().list_snapshots(PageRequest()).items
        mine = tuple(one for one in rows if source is None or one.source.startswith(leaf(source)[:3]))
        return Page(items=mine[: page.limit or None])


class Ungrouped(Paged):
    """Lists only what was cut alone, or what looks like it."""

    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        return super().cut([replace(one, group="") if hasattr(one, "group") else one for one in rows], page)


class Hiding(Paged):
    def cut(self, rows: Sequence[Any], page: PageRequest) -> Page[Any]:
        return super().cut([one for one in rows if not getattr(one, "group", "")], page)


BROKEN = [
    (listing.every_volume_is_listed_exactly_once, Inclusive, "twice"),
    (listing.every_volume_is_listed_exactly_once, Skipping, "missing, although they exist"),
    (listing.every_volume_is_listed_exactly_once, SortingFiles, "missing, although they exist"),
    (listing.every_volume_is_listed_exactly_once, Generous, "the limit of the request is 1"),
    (listing.every_volume_is_listed_exactly_once, Wavering, "list_volumes"),
    (listing.every_volume_is_listed_exactly_once, Endless, "so the listing never ends"),
    (listing.every_volume_is_listed_exactly_once, Wordy, "returned a cursor of"),
    (listing.every_snapshot_is_listed_exactly_once, Inclusive, "twice"),
    (listing.every_snapshot_is_listed_exactly_once, Wordy, "returned a cursor of"),
    (
        listing.volumes_can_be_listed_while_others_are_created_and_deleted,
        Paged,
        "while others were created and deleted between pages",
    ),
    (listing.volumes_can_be_listed_while_others_are_created_and_deleted, Cautious, "something has changed"),
    (
        listing.snapshots_can_be_listed_while_others_are_created_and_deleted,
        Paged,
        "while others were created and deleted",
    ),
    (listing.volumes_can_be_listed_when_there_are_none, Empty, "pool 'kit' does not exist"),
    (listing.snapshots_can_be_listed_when_there_are_none, Empty, "pool 'kit' does not exist"),
    (listing.a_listed_volume_equals_the_answer_of_get_volume, Brief, "size=0"),
    (listing.a_listed_snapshot_equals_the_answer_of_get_snapshot, Brief, "size=0"),
    (listing.an_unknown_volume_cursor_is_refused, Trusting, "succeeded, the contract requires InvalidToken"),
    (listing.an_unknown_snapshot_cursor_is_refused, Trusting, "the contract requires InvalidToken"),
    (listing.a_volume_cursor_survives_a_restart, Remembering, "is not known"),
    (listing.a_snapshot_cursor_survives_a_restart, Remembering, "is not known"),
    (listing.snapshots_can_be_listed_by_their_source, Unfiltered, "while another volume has a snapshot"),
    (listing.snapshots_can_be_listed_by_their_source, Alike, "while another volume has a snapshot"),
    (listing.a_volume_without_snapshots_has_an_empty_list, Unfiltered, "that has none"),
    (listing.a_volume_without_snapshots_has_an_empty_list, Looking, "does not exist"),
    (listing.group_members_are_listed_with_their_group, Ungrouped, "compared with the group's answer"),
    (listing.group_members_are_listed_with_their_group, Hiding, "which exists"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
