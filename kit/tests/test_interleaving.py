"""A call is paused at its calls to the storage, and another one is made meanwhile, to its end or until it waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing import interleaving, memory
from csi_multi_testing.assertions import CheckFailed, CheckSkipped
from csi_multi_testing.concurrency import CallResult
from csi_multi_testing.context import in_process
from csi_multi_testing.fault_injection import Call
from csi_multi_testing.interleaving import Encounter, expect_order, second_process


class Steps:
    """A storage with a lock; its calls are recorded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[str] = []

    def make(self, step: str) -> None:
        self.made.append(step)


class Both(Encounter):
    """Two calls to Steps, and what they have made at each pause."""

    methods = ("three steps", "one step")

    def __init__(self, steps: Steps, other: Callable[[Steps], Any], **given: Any) -> None:
        calls = (Call(owner=steps, name="make", describe=lambda step: step),)
        self.steps = steps
        self.orders: list[str] = []
        self.results: list[tuple[CallResult, CallResult]] = []
        self.act = other
        context = in_process(memory.storage(calls=calls, **given))
        super().__init__(context, context.in_process)

    def prepare(self) -> None:
        self.steps.made.clear()

    def first(self) -> str:
        for step in "abc":
            self.steps.make(step)
        return "first"

    def second(self) -> Any:
        return self.act(self.steps)

    def verify(self, first: CallResult, second: CallResult, what: str) -> None:
        self.orders.append("".join(self.steps.made))
        self.results.append((first, second))

    def run(self) -> None:
        with self.t:
            expect_order(self)


def test_each_of_the_two_is_paused_at_each_of_its_calls() -> None:
    both = Both(Steps(), lambda steps: steps.make("x"))

    both.run()

    one_after_the_other, turned = both.orders[0], both.orders[4]
    assert (one_after_the_other, turned) == ("abcx", "xabc")
    assert sorted(both.orders[1:4]) == ["abxc", "axbc", "xabc"]
    assert both.orders[5:] == ["abcx"]
    assert both.t.notes == ["three steps paused 3 times beside one step", "one step paused 1 times beside three steps"]


def test_calls_that_change_nothing_are_left_out_unless_there_are_no_others() -> None:
    both = Both(Steps(), lambda steps: steps.make("x"), read_only_calls=("a", "x"))

    both.run()

    assert "xabc" not in both.orders[1:3]
    assert both.t.notes[0].startswith("three steps paused 2 times")
    assert both.t.notes[1].startswith("one step paused 1 times")


def test_a_call_that_waits_for_the_paused_one_lets_it_go_on() -> None:
    steps = Steps()

    def locked(steps: Steps) -> None:
        with steps.lock:
            steps.make("x")

    class Locked(Both):
        def first(self) -> str:
            with steps.lock:
                return super().first()

    both = Locked(steps, locked)
    both.both = False  # type: ignore[misc]
    started = time.monotonic()

    both.run()

    assert both.orders == ["abcx"] * 4
    assert time.monotonic() - started < interleaving.LONGEST


def test_a_call_that_looks_again_and_again_lets_the_paused_one_go_on() -> None:
    steps, wait = Steps(), threading.Event()

    def polls(steps: Steps) -> None:
        while "c" not in steps.made:
            wait.wait(0.01)

    both = Both(steps, polls)
    both.both = False  # type: ignore[misc]
    started = time.monotonic()

    both.run()

    assert both.orders == ["abc"] * 4
    assert time.monotonic() - started < interleaving.LONGEST


def test_a_call_that_never_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaving, "TIME_LIMIT", 0.1)
    never = threading.Event()

    with pytest.raises(CheckFailed, match=r"one step: does not return within 0\.1 s"):
        Both(Steps(), lambda _: never.wait(20)).run()
    never.set()


def test_slow_storage_is_paused_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleaving, "SECONDS", 0)
    few = Both(Steps(), lambda steps: steps.make("x"))
    all_of_them = Both(Steps(), lambda steps: steps.make("x"), complete=True)

    few.run()
    all_of_them.run()

    assert few.t.notes[0].startswith("three steps paused 2 times")
    assert all_of_them.t.notes[0].startswith("three steps paused 3 times")


def test_many_calls_are_paused_at_some_that_are_spread() -> None:
    class Long(Both):
        def first(self) -> str:
            for number in range(100):
                self.steps.make(f"{number} ")
            return ""

    both = Long(Steps(), lambda steps: steps.make("x "))
    both.both = False  # type: ignore[misc]

    both.run()

    places = sorted(order.split().index("x") for order in both.orders[1:])
    assert places == [number * 100 // interleaving.MOST for number in range(interleaving.MOST)]


def test_calls_that_are_not_recorded_skip_the_check() -> None:
    class Unrecorded(Both):
        def first(self) -> str:
            return ""

    with pytest.raises(CheckSkipped, match="three steps and one step: no call through the boundary was recorded"):
        Unrecorded(Steps(), lambda _: None).run()


def test_an_error_of_either_is_an_answer_and_a_failed_check_is_not() -> None:
    def fails(_: Steps) -> None:
        raise KeyError("x")

    def fails_the_check(_: Steps) -> None:
        raise CheckFailed("the check")

    both = Both(Steps(), fails)
    both.run()
    assert all(first.answer == "first" and isinstance(second.error, KeyError) for first, second in both.results)

    with pytest.raises(CheckFailed, match="the check"):
        Both(Steps(), fails_the_check).run()


def test_a_second_process_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    t = in_process(memory.storage())
    with second_process(t) as other:
        closed: list[bool] = []
        monkeypatch.setattr(other.backend, "close", lambda: closed.append(True))

    assert closed == [True]
