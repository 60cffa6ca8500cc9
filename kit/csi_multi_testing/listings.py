"""Listings of volumes and of snapshots, read page by page; every page is compared with the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from csi_multi.contract import Page, Volume, ids

from .assertions import CheckFailed, expect
from .context import CheckContext
from .protocol import Target

MAX_EMPTY_PAGES = 100  # consecutive pages without an item: such a listing never ends
LONG_TEXT_BYTES = 115  # of the 128 bytes of a name; a unique suffix follows
MAX_FOREIGN_PAGES = 20  # pages that foreign items may take


@dataclass(frozen=True, kw_only=True)
class Listing:
    """One of the two listings, and how its items are created, read and deleted."""

    t: CheckContext
    method: str
    read: Callable[..., Page[Any]]
    make: Callable[[str], Any]  # a name -> the item created under it
    get: Callable[[str], Any]
    delete: Callable[[str], None]

    def page(self, cursor: str = "", limit: int = 0, **more: Any) -> Page[Any]:
        """Return one page. Raises CheckFailed for a page that is too long or has a cursor that is too long."""
        page = self.read(cursor, limit, **more)
        count = len(page.items)
        expect(
            not limit or count <= limit, f"{self.method} returned {count} items, the limit of the request is {limit}"
        )
        most = (
            ids.MAX_HANDLE if self.t.client.target is Target.BACKEND else ids.MAX_ID
        )  # a token also has the instance's name
        size = len(page.cursor.encode())
        expect(size <= most, f"{self.method} returned a cursor of {size} bytes, the maximum is {most} for any names")
        return page

    def iterate_pages(self, limit: int, cursor: str = "", **more: Any) -> Iterator[Page[Any]]:
        """Yield the pages after the cursor. Raises CheckFailed for a listing that does not end."""
        met, empty = {cursor}, 0
        while True:
            page = self.page(cursor, limit, **more)
            yield page
            cursor, empty = page.cursor, 0 if page.items else empty + 1
            if not cursor:
                return
            expect(cursor not in met, f"{self.method} repeats cursor {cursor!r}, so the listing never ends")
            expect(
                empty < MAX_EMPTY_PAGES,
                f"{self.method} returned {empty} empty pages in a row, so the listing never ends",
            )
            met.add(cursor)

    def handles(self, limit: int = 0, **more: Any) -> list[str]:
        """Return the handles of the whole listing, in its order. Raises CheckFailed if one is listed twice."""
        found = [item.handle for page in self.iterate_pages(limit, **more) for item in page.items]
        self.expect_once(found)
        return found

    def expect_once(self, found: list[str]) -> None:
        twice = sorted({one for one in found if found.count(one) > 1})
        expect(not twice, f"{self.method} lists {', '.join(twice[:5])} twice")

    def expect_all(self, wanted: list[str], found: list[str], what: str) -> None:
        absent = sorted(set(wanted) - set(found))
        expect(not absent, f"{self.method}, {what}: {', '.join(absent[:5])} missing, although they exist")

    def create_items(self, count: int) -> list[Any]:
        """Create items, two of them with the longest names: at least one is not the last, so a cursor is for it."""
        texts = ["kit"] * (count - 2) + ["a" * LONG_TEXT_BYTES, "z" * LONG_TEXT_BYTES]
        return [self.make(self.t.name(text)) for text in texts]

    def create_similar(self) -> list[Any]:
        """Create items of which one name begins with another's: with a suffix they have another order than without."""
        name = self.t.name()
        return [self.make(one) for one in (name, f"{name}-1", f"{name}0")]

    def small_page(self) -> int:
        """Return a small page size: 1, or more if the storage has many foreign items."""
        return 1 + len(self.handles()) // MAX_FOREIGN_PAGES

    def find(self, handle: str) -> Any:
        """Return one item as the listing shows it."""
        for page in self.iterate_pages(0):
            for item in page.items:
                if item.handle == handle:
                    return item
        raise CheckFailed(f"{self.method} does not list {handle}, which exists")


def volumes(t: CheckContext) -> Listing:
    def delete(handle: str) -> None:
        t.forget(t.client.get(handle))
        t.client.delete(handle)

    return Listing(
        t=t, method="list_volumes", read=t.client.list_volumes, make=t.volume, get=t.client.get, delete=delete
    )


def snapshots(t: CheckContext, of: Volume | None = None) -> Listing:
    """Return the listing of snapshots; the snapshots it creates are of one volume."""
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
