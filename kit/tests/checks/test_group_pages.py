"""Backends whose pages lose snapshots beside the members of groups, and the check that finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import group_pages
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InvalidToken, Page, PageRequest, Snapshot


class Appends(MemoryBackend):
    """Lists members after all others, and begins a page after the cursor's name."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        found = [one for one in self.storage.snapshots.values() if source in (None, one.source)]
        names = sorted(one.handle for one in found if not one.group) + sorted(one.handle for one in found if one.group)
        rest = [name for name in names if name > page.cursor] if page.cursor else names
        shown = rest[: page.limit or None]
        items = tuple(self.storage.snapshots[name] for name in shown)
        return Page(items=items, cursor=shown[-1] if len(shown) < len(rest) else "")


class ShortCursors(MemoryBackend):
    """Knows no cursor that is longer than the names of most orchestrators."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        if len(page.cursor) > 40:
            raise InvalidToken(f"cursor {page.cursor!r} is too long")
        return super().list_snapshots(page, source)


class Partial(MemoryBackend):
    """Lists the first member of each group only."""

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        found = super().list_snapshots(page, source)
        return replace(found, items=tuple(one for one in found.items if not one.group or one.handle.endswith("-0")))


BROKEN = [
    (group_pages.pages_hold_all_snapshots_in_and_outside_of_groups_once, Appends, "per page, beside groups with"),
    (group_pages.pages_hold_all_snapshots_in_and_outside_of_groups_once, ShortCursors, "is too long"),
    (group_pages.pages_hold_all_snapshots_in_and_outside_of_groups_once, Partial, "members of groups"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
