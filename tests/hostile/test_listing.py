"""Listings of hostile length and shape: in bounded messages, memory and time, or with a named error."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Page, PageRequest, Stamp, Volume
from csi_multi.rpc import listing

Code = grpc.StatusCode
MESSAGE = 4 << 20  # the default limit of a gRPC client in Go
STAMP = Stamp(driver="multi.csi.example.com", cluster="default", name="n", digest="x")


class Long(MemoryBackend):
    """Lists `count` volumes that it invents, each with so many bytes of context."""

    count = 100_000
    context = 0

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        start = int(page.cursor or 0)
        end = min(start + page.limit, self.count)
        stamp = replace(STAMP, context={"k": "x" * self.context})
        items = tuple(Volume(handle=f"pvc-{number:039}", size=1 << 30, stamp=stamp) for number in range(start, end))
        return Page(items=items, cursor=str(end) if end < self.count else "")


def walk(client: Any, limit: int = 0) -> tuple[int, int]:
    """Read the whole list; return how many volumes and how many pages it has."""
    token, volumes, pages = "", set(), 0
    while True:
        page = client.ListVolumes(max_entries=limit, starting_token=token)
        assert page.ByteSize() < MESSAGE
        before = len(volumes)
        volumes |= {entry.volume.volume_id for entry in page.entries}
        assert len(volumes) == before + len(page.entries), "each is listed once"
        pages, token = pages + 1, page.next_token
        if not token:
            return len(volumes), pages


@pytest.mark.slow
def test_100_000_volumes_come_in_pages_that_every_client_takes(beside: Any, serves: Any) -> None:
    served = beside(Long)
    served.client.ListVolumes(max_entries=1)  # modules and caches that the first call loads
    tracemalloc.start()
    began = time.process_time()
    try:
        served.client.ListVolumes()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 32 << 20, "one page at a time"
    assert walk(served.client) == (100_000, 21), "20 full pages, and the end"
    assert time.process_time() - began < 60
    serves(served.client)


@pytest.mark.parametrize("context", [1000, 4000])
def test_volumes_with_much_to_say_come_in_smaller_pages(context: int, beside: Any) -> None:
    served = beside(Long)
    served.backend("bad").count, served.backend("bad").context = 3000, context

    volumes, pages = walk(served.client)

    assert volumes == 3000
    assert pages <= 4 * 3000 * context // listing.MAX_BYTES + 2


class Lister(MemoryBackend):
    answer: Callable[[PageRequest], Any]

    def list_volumes(self, page: PageRequest) -> Any:
        return self.answer(page)


def volumes(*names: str) -> tuple[Volume, ...]:
    return tuple(Volume(handle=name, size=1, stamp=STAMP) for name in names)


def in_turn(page: PageRequest) -> Page[Volume]:
    cursor = {"": "a", "a": "b", "b": "a"}[page.cursor]
    return Page(items=(), cursor=cursor)


HOSTILE: dict[str, tuple[Callable[[PageRequest], Any], str]] = {
    "a page that repeats": (lambda page: Page(items=volumes("a") if not page.cursor else (), cursor="a"), "cursor 'a'"),
    "pages in a ring": (in_turn, "repeats cursor 'a'"),
    "a page that repeats with its items": (
        lambda page: Page(items=volumes("a"), cursor=page.cursor + "x"),
        "'a' twice",
    ),
    "empty pages without end": (lambda page: Page(items=(), cursor=str(int(page.cursor or 0) + 1)), "101 empty pages"),
    "a cursor that fits into no token": (lambda _: Page(items=(), cursor="c" * 108), ".cursor has 108 bytes"),
    "a cursor that is a number": (lambda _: Page(items=(), cursor=5), ".cursor is int 5, not a str"),  # type: ignore[arg-type]
    "no cursor": (lambda _: Page(items=(), cursor=None), ".cursor is None, not a str"),  # type: ignore[arg-type]
    "one handle twice": (lambda _: Page(items=volumes("a", "b", "a")), "has 'a' twice"),
    "more than was asked for": (
        lambda _: Page(items=volumes(*map(str, range(10_000)))),
        "has 10000 items in a page of at most 5000",
    ),
    "a generator": (lambda _: Page(items=(one for one in volumes("a"))), ".items is a generator, not a tuple"),  # type: ignore[arg-type]
    "a list": (lambda _: Page(items=list(volumes("a"))), ".items is a list, not a tuple"),  # type: ignore[arg-type]
    "no page": (lambda _: None, " is None, not a Page"),
    "a wrong item far behind": (lambda _: Page(items=(*volumes("a", "b"), "c")), ".items[2] is str 'c', not a Vol"),
    "a stranger's volume": (
        lambda _: Page(items=(*volumes("a"), replace(volumes("b")[0], stamp=replace(STAMP, cluster="other")))),
        ".items[1].stamp belongs to driver 'multi.csi.example.com', cluster 'other', not to ours",
    ),
    "an item beyond any message": (
        lambda _: Page(items=(replace(volumes("a")[0], published_nodes=("n" * 200,) * 20_000),)),
        "has an item that does not fit into 3500000 bytes",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_listing_that_cannot_be_is_refused_with_what_is_wrong(
    case: str, beside: Any, refused: Any, serves: Any, errors: Any
) -> None:
    answer, words = HOSTILE[case]
    served = beside(Lister)
    served.backend("bad").answer = answer
    began = time.process_time()

    refusal = refused(served.client.ListVolumes)

    assert (refusal.code, words in refusal.text) == (Code.INTERNAL, True), refusal.text
    assert "backend 'bad' (module tests.hostile.test_listing) returned an invalid response" in refusal.text
    assert errors()[0]["instance"] == "bad"
    assert time.process_time() - began < 30, "no loop without end"
    serves(served.client)


def test_a_page_of_the_longest_cursor_can_be_continued(beside: Any) -> None:
    served = beside(Lister)
    cursor = "c" * 107
    served.backend("bad").answer = lambda page: Page(
        items=volumes(f"v{page.cursor[:1]}"), cursor="" if page.cursor else cursor
    )

    page = served.client.ListVolumes(max_entries=1)

    assert served.client.ListVolumes(starting_token=page.next_token).entries[0].volume.volume_id == "bad/vc"
