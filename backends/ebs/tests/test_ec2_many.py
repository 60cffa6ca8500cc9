"""Questions about many ids are not spoiled by one, and pages are whole at every size."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pytest
from csi_multi_ebs.listing import chunks, every_page, existing, filter_literal, one_page

from csi_multi.contract import InvalidArgument, InvalidToken, NotFound, Unavailable

IDS = [f"vol-{number:08x}" for number in range(1200)]


class Store:
    """Has some ids, and refuses a question about others as EC2 does."""

    def __init__(self, has: Collection[str], says: str = "The volumes '{}' do not exist.") -> None:
        self.has = set(has)
        self.says = says
        self.asked: list[list[str]] = []

    def __call__(self, ids: list[str]) -> list[str]:
        self.asked.append(ids)
        if missing := [one for one in ids if one not in self.has]:
            raise NotFound(self.says.format(", ".join(missing)))
        return ids


def test_what_is_missing_is_left_out_and_the_rest_asked_again() -> None:
    store = Store(IDS[:98])

    assert sorted(existing(IDS[:100], store, 500)) == IDS[:98]
    assert len(store.asked) == 2


def test_when_all_are_missing_nothing_is_asked_again() -> None:
    store = Store([])

    assert existing(IDS[:10], store, 500) == []
    assert len(store.asked) == 1


def test_a_refusal_that_names_nobody_is_narrowed_down() -> None:
    store = Store(set(IDS[:100]) - {IDS[17], IDS[60]}, says="Something does not exist.")

    assert sorted(existing(IDS[:100], store, 500)) == sorted(store.has)
    assert len(store.asked) < 30


def test_a_refusal_that_names_somebody_else_ends() -> None:
    assert existing(IDS[:3], Store([], says="The volume 'vol-ffffffff' does not exist."), 500) == []


def test_no_question_is_about_more_than_the_most() -> None:
    store = Store(IDS)

    assert sorted(existing(IDS, store, 500)) == IDS
    assert [len(some) for some in store.asked] == [200, 500, 500]


def test_other_trouble_is_not_taken_for_absence() -> None:
    def fail(ids: list[str]) -> list[str]:
        raise Unavailable("EC2 is away")

    with pytest.raises(Unavailable):
        existing(IDS[:2], fail, 500)


def test_an_id_that_is_asked_for_twice_is_sent_once() -> None:
    assert list(chunks(["a", "b", "a"], 500)) == [["a", "b"]]


@pytest.mark.parametrize(("text", "escaped"), [("a*b?", r"a\*b\?"), ("a\\b", r"a\\b"), ("pvc-1/2", "pvc-1/2")])
def test_wildcards_mean_themselves(text: str, escaped: str) -> None:
    assert filter_literal(text) == escaped


@dataclass(frozen=True)
class Row:
    id: str


class Book:
    """Rows in EC2's pages: at least five at a time, with tokens."""

    def __init__(self, number: int) -> None:
        self.rows = [Row(one) for one in IDS[:number]]

    def __call__(self, most: int, token: str) -> tuple[list[Row], str]:
        assert 5 <= most <= 1000
        if token and not token.startswith("after:"):
            raise InvalidArgument("InvalidParameterValue")
        after = token.removeprefix("after:")
        rest = [row for row in self.rows if row.id > after]
        more = len(rest) > most
        return rest[:most], f"after:{rest[most - 1].id}" if more else ""


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 7, 1000, 2000, 0])
def test_pages_of_any_size_show_everything_once(limit: int) -> None:
    book, token, shown = Book(13), "", []
    while True:
        rows, token = one_page(book, limit, token)
        assert len(rows) <= limit or not limit
        shown += rows
        if not token:
            break

    assert shown == book.rows


def test_a_row_that_goes_between_two_pages_makes_no_other_disappear() -> None:
    book = Book(7)
    first, token = one_page(book, 2, "")
    book.rows.remove(first[1])

    second, token = one_page(book, 2, token)
    third, token = one_page(book, 2, token)

    assert [*first, *second, *third] == [Row(one) for one in IDS[:6]]


@pytest.mark.parametrize("token", ["foreign", " foreign", "after:vol-1 x y"])
def test_a_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken):
        one_page(Book(3), 2, token)


def test_a_first_page_that_is_refused_is_no_matter_of_tokens() -> None:
    def refuse(most: int, token: str) -> tuple[list[Row], str]:
        raise InvalidArgument("the filter")

    with pytest.raises(InvalidArgument):
        one_page(refuse, 2, "")


def test_every_page_is_read() -> None:
    book = Book(23)

    assert every_page(lambda token: book(5, token)) == book.rows
