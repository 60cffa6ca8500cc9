"""Listings of volumes and of snapshots, walked page by page; every page is held against the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from csi_multi.contract import Page, Volume, ids

from .assertions import CheckFailed, expect
from .context import CheckContext
from .protocol import Target

EMPTY = 100  # pages without an item in a row: such a listing gets nowhere
LONG = 115  # of the 128 bytes of a name; a number follows
FEW = 20  # pages that somebody else's items may cost


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One of the two listings, and how its items are made, asked for and deleted."""

    t: CheckContext
    method: str
    read: Callable[..., Page[Any]]
    make: Callable[[str], Any]  # a name -> what is made under it
    get: Callable[[str], Any]
    delete: Callable[[str], None]

    def page(self, cursor: str = "", limit: int = 0, **more: Any) -> Page[Any]:
        """Return one page. Raises Broken for what a page may never be."""
        page = self.read(cursor, limit, **more)
        count = len(page.items)
        expect(not limit or count <= limit, f"{self.method} gave {count} items, asked for were at most {limit}")
        most = (
            ids.MAX_HANDLE if self.t.client.target is Target.BACKEND else ids.MAX_ID
        )  # a token holds the instance's name, too
        size = len(page.cursor.encode())
        expect(
            size <= most, f"{self.method} gave a cursor of {size} bytes: {most} are allowed, whatever names are like"
        )
        return page

    def walk(self, limit: int, cursor: str = "", **more: Any) -> Iterator[Page[Any]]:
        """Yield the pages after the cursor. Raises Broken for a listing that does not end."""
        met, empty = {cursor}, 0
        while True:
            page = self.page(cursor, limit, **more)
            yield page
            cursor, empty = page.cursor, 0 if page.items else empty + 1
            if not cursor:
                return
            expect(cursor not in met, f"{self.method} repeats cursor {cursor!r}: it never ends")
            expect(empty < EMPTY, f"{self.method} gave {empty} empty pages in a row: it never ends")
            met.add(cursor)

    def handles(self, limit: int = 0, **more: Any) -> list[str]:
        """Return the handles of the whole listing, in its order. Raises Broken when one is there twice."""
        found = [item.handle for page in self.walk(limit, **more) for item in page.items]
        self.expect_once(found)
        return found

    def expect_once(self, found: list[str]) -> None:
        twice = sorted({one for one in found if found.count(one) > 1})
        expect(not twice, f"{self.method} shows {', '.join(twice[:5])} twice")

    def expect_all(self, wanted: list[str], found: list[str], what: str) -> None:
        absent = sorted(set(wanted) - set(found))
        expect(not absent, f"{self.method}, {what}: {', '.join(absent[:5])} missing, but there all the time")

    def make_some(self, count: int) -> list[Any]:
        """Make items, two of them with names as long as names get: one is not the last, so a cursor stands for it."""
        texts = ["kit"] * (count - 2) + ["a" * LONG, "z" * LONG]
        return [self.make(self.t.name(text)) for text in texts]

    def small(self) -> int:
        """Return the smallest page that is worth asking for: 1, unless much of somebody else's is there."""
        return 1 + len(self.handles()) // FEW

    def find(self, handle: str) -> Any:
        """Return one item as the listing shows it."""
        for page in self.walk(0):
            for item in page.items:
                if item.handle == handle:
                    return item
        raise CheckFailed(f"{self.method} does not show {handle}, which exists")


def volumes(t: CheckContext) -> Listing:
    def delete(handle: str) -> None:
        t.forget(t.client.get(handle))
        t.client.delete(handle)

    return Listing(
        t=t, method="list_volumes", read=t.client.list_volumes, make=t.volume, get=t.client.get, delete=delete
    )


def snapshots(t: CheckContext, of: Volume | None = None) -> Listing:
    """Return the listing of snapshots; what is made is cut from one volume."""
    origin = of or t.volume()

    def delete(handle: str) -> None:
        t.forget(t.client.get_snapshot(handle))
        t.client.delete_snapshot(handle)

    return Listing(
        t=t,
        method="list_snapshots",
        read=t.client.list_snapshots,
        make=lambda name: t.snapshot(origin, name),
        get=t.client.get_snapshot,
        delete=delete,
    )
