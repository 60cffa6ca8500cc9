"""Pages of a listing by name, stable while entries are added or removed; only the items of a page are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeVar

from .errors import InvalidToken
from .ids import LEAF_SHAPE
from .model import Page, PageRequest

T = TypeVar("T")


def paged(leaves: list[str], request: PageRequest, load: Callable[[str], T | None]) -> Page[T]:
    """Return the items after the cursor, a name that may be deleted by now; `load` returns None to omit an item."""
    if request.cursor and not LEAF_SHAPE.fullmatch(request.cursor):
        raise InvalidToken(f"cursor {request.cursor!r} was not issued by this backend; list again from the start")
    items: list[T] = []
    last = ""
    for leaf in leaves[bisect_right(leaves, request.cursor) :]:
        item = load(leaf)
        if item is None:
            continue
        if request.limit and len(items) == request.limit:
            return Page(items=tuple(items), cursor=last)
        items.append(item)
        last = leaf
    return Page(items=tuple(items))
