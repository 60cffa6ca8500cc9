"""Pages by name lose nothing and repeat nothing, and only the items of a page are read."""

from __future__ import annotations

import pytest

from csi_multi.contract import InvalidToken, PageRequest, paged


def test_pages_have_every_item_once() -> None:
    names, found, cursor = ["a", "b", "c", "d", "e"], [], ""
    while True:
        page = paged(names, PageRequest(cursor=cursor, limit=2), str.upper)
        found += page.items
        if not (cursor := page.cursor):
            break

    assert found == ["A", "B", "C", "D", "E"]


def test_the_cursor_may_be_a_name_that_is_deleted_by_now() -> None:
    assert paged(["a", "c"], PageRequest(cursor="b"), str.upper).items == ("C",)


def test_an_omitted_item_does_not_count() -> None:
    page = paged(["a", "b", "c"], PageRequest(limit=2), lambda name: None if name == "a" else name)

    assert (page.items, page.cursor) == (("b", "c"), "")


def test_only_the_items_of_the_page_and_the_next_one_are_read() -> None:
    read: list[str] = []

    paged(["a", "b", "c", "d"], PageRequest(limit=1), lambda name: read.append(name) or name)  # type: ignore[func-returns-value]

    assert read == ["a", "b"]


def test_a_cursor_of_another_form_is_refused() -> None:
    with pytest.raises(InvalidToken, match=r"'\.\./etc' was not issued by this backend"):
        paged([], PageRequest(cursor="../etc"), str)
