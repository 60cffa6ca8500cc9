"""Simultaneous lookups are one call, and a failure concerns only the callers that share it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import pytest
from csi_multi_ebs.batching import Batcher

from csi_multi.contract import Timeout, Unavailable

from .thread_helpers import run_together, wait_until_ended

WINDOW = 0.2  # long enough for all threads of a test to arrive


class Shop:
    """Answers questions about what it has, and remembers them."""

    def __init__(self, **has: int) -> None:
        self.has = has
        self.asked: list[list[str]] = []
        self.answers: Callable[[], None] = lambda: None

    def __call__(self, keys: Collection[str]) -> dict[str, int]:
        self.asked.append(sorted(keys))
        self.answers()
        return {key: self.has[key] for key in keys if key in self.has}


def test_lookups_at_the_same_time_are_one_question() -> None:
    shop = Shop(**{f"k{number}": number for number in range(50)})
    batcher = Batcher(shop, most=100, window=WINDOW)

    found = run_together(*(lambda key=f"k{number}": batcher.get(key) for number in range(50)))

    assert found == list(range(50))
    assert len(shop.asked) == 1


def test_what_does_not_exist_is_none_and_spoils_nothing() -> None:
    batcher = Batcher(Shop(a=1), most=10, window=WINDOW)

    assert run_together(lambda: batcher.get("a"), lambda: batcher.get("gone")) == [1, None]


def test_a_key_that_many_ask_for_is_asked_for_once() -> None:
    shop = Shop(a=1)
    batcher = Batcher(shop, most=10, window=WINDOW)

    run_together(*[lambda: batcher.get("a")] * 8)

    assert shop.asked == [["a"]]


def test_a_full_batch_does_not_wait_for_more() -> None:
    shop = Shop(a=1, b=2)
    batcher = Batcher(shop, most=2, window=60)

    soon = time.monotonic() + 10
    assert run_together(lambda: batcher.get("a", soon), lambda: batcher.get("b", soon)) == [1, 2]


def test_no_question_is_about_more_than_the_most() -> None:
    shop = Shop(**{f"k{number}": number for number in range(25)})
    batcher = Batcher(shop, most=10, window=0.01)

    assert batcher.many(shop.has) == shop.has
    sizes = [len(question) for question in shop.asked]
    assert (max(sizes), sum(sizes)) == (10, 25)  # on a busy machine the window may end before the last are there


def test_many_returns_only_what_exists() -> None:
    assert Batcher(Shop(a=1), most=10, window=0).many(["a", "gone"]) == {"a": 1}


def test_a_lookup_never_joins_a_question_that_was_already_asked() -> None:
    shop = Shop(a=1)
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        asked.set()
        go_on.wait(10)

    shop.answers = slow
    batcher = Batcher(shop, most=10, window=0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher.get, "a")
        asked.wait(10)
        second = pool.submit(batcher.get, "a")
        while len(shop.asked) < 2:
            time.sleep(0.001)
        go_on.set()
        assert [first.result(10), second.result(10)] == [1, 1]


def test_a_lookup_that_need_not_be_fresh_joins_a_question_until_it_is_answered() -> None:
    shop = Shop(a=1)
    asked, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        asked.set()
        go_on.wait(10)

    shop.answers = slow
    batcher = Batcher(shop, most=10, window=0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(batcher.get, "a")
        asked.wait(10)
        with pytest.raises(Timeout):
            batcher.get("a", time.monotonic() + 0.05, fresh=False)
        assert len(shop.asked) == 1
        go_on.set()
        assert first.result(10) == 1
    wait_until_ended("ebs-lookup")

    assert batcher.get("a", fresh=False) == 1
    assert len(shop.asked) == 2


def test_a_failure_reaches_each_caller_as_an_exception_of_its_own() -> None:
    shop = Shop()

    def fail() -> None:
        raise Unavailable("EC2 is away")

    shop.answers = fail
    batcher = Batcher(shop, most=10, window=WINDOW)

    errors = run_together(*[lambda: batcher.get("a")] * 5)

    assert [(type(error), str(error)) for error in errors] == [(Unavailable, "EC2 is away")] * 5
    assert len(set(map(id, errors))) == 5
    assert len(shop.asked) == 1


def test_after_a_failure_the_next_lookup_asks_anew() -> None:
    shop = Shop(a=1)
    batcher = Batcher(shop, most=10, window=0)

    def fail() -> None:
        raise Unavailable("EC2 is away")

    shop.answers = fail
    with pytest.raises(Unavailable):
        batcher.get("a")
    shop.answers = lambda: None

    assert batcher.get("a") == 1


def test_a_question_that_hangs_stops_neither_its_callers_nor_later_ones() -> None:
    shop = Shop(a=1, b=2)
    go_on = threading.Event()
    shop.answers = lambda: None if "b" in shop.asked[-1] else (go_on.wait(10), None)[1]
    batcher = Batcher(shop, most=10, window=0)

    with pytest.raises(Timeout):
        batcher.get("a", time.monotonic() + 0.1)
    assert batcher.get("b", time.monotonic() + 5) == 2

    go_on.set()


def test_no_thread_stays_behind() -> None:
    batcher = Batcher(Shop(a=1), most=10, window=0)
    batcher.get("a")

    wait_until_ended("ebs-lookup")
