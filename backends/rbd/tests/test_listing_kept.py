"""What a listing has shown is kept for its next pages: within limits, and without what is gone."""

from __future__ import annotations

import pytest
from csi_multi_rbd import listing
from csi_multi_rbd.listing import Listing

from csi_multi.contract import Page, PageRequest

from .fake_cluster import FakeCluster
from .volumes import create

Names = tuple[str, ...]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Shown:
    """The volumes of a pool, by their names."""

    def __init__(self, volumes: int) -> None:
        self.pool, self.clock = FakeCluster(), Clock()
        self.backend = self.pool.backend()
        for number in range(volumes):
            create(self.backend, f"v{number}")
        self._listing = Listing(self.backend.main.volume_images, self.backend.main.client, self.clock)

    def page(self, cursor: str = "", limit: int = 2) -> Page[str]:
        return self._listing.page(
            PageRequest(cursor=cursor, limit=limit), lambda image, *_: image.name.rpartition("-")[2]
        )

    def listings(self) -> int:
        return len([one for one in self.pool.run if one.startswith("rbd ls")])

    def kept(self) -> int:
        return len(self._listing._kept)


def test_a_listing_is_kept_for_ten_minutes_after_its_last_page() -> None:
    shown = Shown(8)
    cursor = ""
    for _ in range(3):
        cursor = shown.page(cursor).cursor
        shown.clock.now += listing.KEPT_SECONDS - 1
    assert shown.listings() == 1

    shown.clock.now += 1
    assert shown.page(cursor).items == ("v6", "v7")
    assert shown.listings() == 2


def test_a_page_may_be_read_again() -> None:
    shown = Shown(5)
    cursor = shown.page().cursor

    assert shown.page(cursor) == shown.page(cursor)
    assert shown.listings() == 1


def test_a_new_listing_shows_what_is_new() -> None:
    shown = Shown(3)
    shown.page()
    create(shown.backend, "a")

    assert shown.page().items == ("a", "v0")


def test_what_this_driver_deletes_between_two_pages_is_left_out() -> None:
    shown = Shown(6)
    first = shown.page()
    shown.backend.delete_volume("v3", {})

    assert shown.page(first.cursor).items == ("v2", "v4")


def test_only_so_many_images_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_IMAGES", 12)
    shown = Shown(5)
    cursors = [shown.page(limit=limit).cursor for limit in (1, 2, 3)]
    assert shown.kept() == 2
    before = shown.listings()

    assert [shown.page(cursor).items[0] for cursor in cursors] == ["v1", "v2", "v3"]
    assert shown.listings() == before + 1


def test_a_single_listing_is_kept_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_IMAGES", 1)
    shown = Shown(5)
    shown.page(shown.page().cursor)

    assert shown.listings() == 1


def test_listings_that_nobody_reads_on_are_not_kept() -> None:
    shown = Shown(5)
    shown.page(limit=1)
    shown.clock.now += listing.KEPT_SECONDS
    shown.page(limit=2)

    assert shown.kept() == 1
