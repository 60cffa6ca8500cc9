"""Listings: EC2's own pages underneath, ids as cursors above.

EC2's tokens are longer than CSI lets a token be and do not outlive a day, so the ids of one listing are
fetched together, a thousand per call, and kept for a minute for the pages that follow. What is on a page
is looked up anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from csi_multi.contract import Page, PageRequest, paged

from .rows import SnapshotRow, VolumeRow

Row = TypeVar("Row", VolumeRow, SnapshotRow)
T = TypeVar("T")
FRESH = 60.0  # seconds for which the ids of a listing serve its later pages


class Listing(Generic[Row]):
    """All volumes, or all snapshots, of ours. `page` fetches one of EC2's pages, `load` looks ids up."""

    def __init__(
        self,
        page: Callable[[str], tuple[list[Row], str]],
        load: Callable[[list[str]], dict[str, Row]],
    ) -> None:
        self._page: Callable[[str], tuple[list[Row], str]] = page
        self._load: Callable[[list[str]], dict[str, Row]] = load
        self._guard = threading.Lock()
        self._ids: list[str] = []
        self._until = 0.0  # time.monotonic()

    def read(self, request: PageRequest, told: Callable[[dict[str, Row]], Callable[[str], T | None]]) -> Page[T]:
        """Return one page; `told` turns rows into what the contract calls an item, None to leave one out."""
        with self._guard:
            ids = self._ids if time.monotonic() < self._until else []
        if not request.cursor or not ids:
            rows = self._all()
            return paged(sorted(rows), request, told(rows))
        start = [one for one in ids if one > request.cursor]
        window = start[: request.limit + 1] if request.limit else start
        page = paged(window, request, told(self._load(window)))
        more = len(start) > len(window)
        if more and not page.cursor:
            return Page(items=page.items, cursor=window[-1])
        return page

    def _all(self) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        token = ""
        while True:
            some, token = self._page(token)
            rows |= {row.id: row for row in some}
            if not token:
                break
        with self._guard:
            self._ids, self._until = sorted(rows), time.monotonic() + FRESH
        return rows
