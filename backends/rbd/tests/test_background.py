"""Work in the background: once for each key, retried when it fails, never two tasks at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from csi_multi_rbd.background import BackgroundWorker

from csi_multi.contract import Unavailable

BACKGROUND_SECONDS = 10.0  # seconds
Act = Callable[[str], None]


def working(act: Act) -> BackgroundWorker:
    return BackgroundWorker("test", act, pause=0.01)


def test_what_is_asked_for_is_done_in_order() -> None:
    done: list[str] = []
    worker = working(done.append)
    for key in "abc":
        worker.submit(key)

    assert worker.wait_until_idle(BACKGROUND_SECONDS)
    assert done == ["a", "b", "c"]
    worker.close()


def test_what_is_asked_for_twice_before_its_turn_is_done_once() -> None:
    done: list[str] = []
    begin = threading.Event()

    def act(key: str) -> None:
        begin.wait(BACKGROUND_SECONDS)
        done.append(key)

    worker = working(act)
    for key in ("first", "a", "a", "b", "a"):
        worker.submit(key)
    begin.set()

    assert worker.wait_until_idle(BACKGROUND_SECONDS)
    assert done == ["first", "a", "b"]
    worker.close()


def test_what_fails_is_tried_again_and_holds_up_nothing_else() -> None:
    done: list[str] = []

    def act(key: str) -> None:
        done.append(key)
        if key == "a" and done.count("a") < 3:
            raise Unavailable("not now")

    worker = working(act)
    worker.submit("a")
    worker.submit("b")

    assert worker.wait_until_idle(BACKGROUND_SECONDS)
    assert done.count("a") == 3
    assert done.index("b") <= 1 + done[:2].count("a")
    worker.close()


def test_a_bug_in_one_thing_is_no_reason_to_stop() -> None:
    done: list[str] = []

    def act(key: str) -> None:
        done.append(key)
        if key == "a":
            raise KeyError(key)

    worker = working(act)
    worker.submit("a")
    worker.submit("b")

    assert worker.wait_until_idle(BACKGROUND_SECONDS)
    assert done == ["a", "b"]
    worker.close()


def test_nothing_begins_after_the_end() -> None:
    done: list[str] = []
    worker = working(done.append)
    worker.submit("late", after=BACKGROUND_SECONDS)
    worker.close()
    worker.submit("later")

    assert not worker.wait_until_idle(0.05)
    assert done == []


def test_an_idle_worker_has_no_thread() -> None:
    before = threading.active_count()
    working(lambda _: None)

    assert threading.active_count() == before


def test_what_goes_on_failing_is_tried_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    tries = iter(range(4))

    def act(key: str) -> None:
        if next(tries) < 3:
            raise Unavailable("its parent is gone")

    worker = working(act)
    worker.submit("a")

    assert worker.wait_until_idle(BACKGROUND_SECONDS)
    assert [record.args[-1] for record in caplog.records if isinstance(record.args, tuple)] == [0.01, 0.02, 0.04]
    worker.close()


def test_what_is_withdrawn_is_not_done() -> None:
    done: list[str] = []
    worker = working(done.append)
    worker.submit("a", after=0.2)
    worker.submit("b", after=0.3)
    worker.withdraw("a")

    assert worker.wait_until_idle(BACKGROUND_SECONDS)
    assert done == ["b"]
    worker.close()
