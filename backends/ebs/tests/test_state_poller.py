"""All waiting callers share one poll at a time, and each waits for its own state until its own deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import pytest
from csi_multi_ebs.state_poller import StatePoller

from csi_multi.contract import PermissionDenied, Timeout, Unavailable

from .thread_helpers import wait_until_ended

FIRST = 0.05


class World:
    """Things with a state; remembers what it was looked at for."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.looks: list[list[str]] = []
        self.looked: Callable[[], None] = lambda: None

    def __call__(self, keys: Collection[str]) -> dict[str, str]:
        self.looks.append(sorted(keys))
        self.looked()
        return {key: self.states[key] for key in keys if key in self.states}


@pytest.fixture
def world() -> World:
    return World()


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


def ready(state: str | None) -> bool:
    return state == "ready"


def test_it_returns_what_has_reached_the_state(world: World) -> None:
    world.states["a"] = "making"

    def turn() -> None:
        if len(world.looks) == 3:
            world.states["a"] = "ready"

    world.looked = turn

    assert StatePoller(world, most=10, first=0.01).wait("a", ready, soon()) == "ready"
    assert len(world.looks) == 3


def test_five_hundred_who_wait_are_one_question(world: World) -> None:
    keys = [f"k{number}" for number in range(500)]
    world.states = dict.fromkeys(keys, "making")
    watch = StatePoller(world, most=500, first=0.5)

    def turn() -> None:
        if len(world.looks[-1]) == 500:  # all are there
            world.states = dict.fromkeys(keys, "ready")

    world.looked = turn
    with ThreadPoolExecutor(500) as pool:
        found = list(pool.map(lambda key: watch.wait(key, ready, soon(30)), keys))

    assert found == ["ready"] * 500
    assert len(world.looks) < 20


def test_no_question_is_about_more_than_the_most_and_all_are_asked_for(world: World) -> None:
    keys = [f"k{number}" for number in range(25)]
    watch = StatePoller(world, most=10, first=FIRST)

    def turn() -> None:
        if len({key for look in world.looks for key in look}) == 25:
            world.states = dict.fromkeys(keys, "ready")

    world.looked = turn
    with ThreadPoolExecutor(25) as pool:
        list(pool.map(lambda key: watch.wait(key, ready, soon()), keys))

    assert max(map(len, world.looks)) == 10


def test_two_may_wait_for_different_states_of_one_thing(world: World) -> None:
    world.states["a"] = "making"
    watch = StatePoller(world, most=10, first=0.01)

    def turn() -> None:
        if len(world.looks) == 5:
            world.states["a"] = "ready"

    world.looked = turn
    with ThreadPoolExecutor(2) as pool:
        early = pool.submit(watch.wait, "a", lambda state: state == "making", soon())
        late = pool.submit(watch.wait, "a", ready, soon())
        assert (early.result(10), late.result(10)) == ("making", "ready")


def test_to_be_gone_can_be_waited_for_too(world: World) -> None:
    assert StatePoller(world, most=10, first=0.01).wait("gone", lambda state: state is None, soon()) is None


def test_at_the_deadline_it_says_what_it_saw_last(world: World) -> None:
    world.states["a"] = "making"

    with pytest.raises(
        Timeout, match=r"a did not reach its state before the deadline \(last seen: making\); try again"
    ):
        StatePoller(world, most=10, first=0.01).wait("a", ready, soon(0.1))


def test_looks_become_rarer(world: World) -> None:
    with pytest.raises(Timeout):
        StatePoller(world, most=10, first=0.02, longest=0.2).wait("a", ready, soon(1))

    assert len(world.looks) < 15  # not 50


def test_a_newcomer_is_not_slowed_down_by_those_who_wait_long(world: World) -> None:
    watch = StatePoller(world, most=10, first=0.02, longest=60)
    world.states["new"] = "ready"
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(watch.wait, "old", ready, soon(60))
        while len(world.looks) < 11:  # its next pause is of 1.7 seconds
            time.sleep(0.005)
        began = time.monotonic()
        watch.wait("new", ready, soon())
        assert time.monotonic() - began < 1.6
        world.states["old"] = "ready"
        watch.wait("new", ready, soon())
        assert old.result(5) == "ready"


def test_one_who_waits_long_profits_from_the_looks_of_others(world: World) -> None:
    watch = StatePoller(world, most=10, first=0.02)
    world.states["new"] = "ready"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(watch.wait, "old", ready, soon(0.3))
        time.sleep(0.05)
        watch.wait("new", ready, soon())

    assert ["new", "old"] in world.looks


def test_the_looks_of_others_do_not_make_ones_own_rarer(world: World) -> None:
    watch = StatePoller(world, most=10, first=0.02, longest=60)
    world.states["new"] = "ready"
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(watch.wait, "old", ready, soon(20))
        for _ in range(20):
            watch.wait("new", ready, soon())
        world.states["old"] = "ready"
        assert old.result(5) == "ready"


def test_a_failed_look_that_may_go_better_later_is_survived(world: World) -> None:
    world.states["a"] = "ready"

    def fail() -> None:
        if len(world.looks) < 3:
            raise Unavailable("EC2 is away")

    world.looked = fail

    assert StatePoller(world, most=10, first=0.01).wait("a", ready, soon()) == "ready"


def test_the_deadline_tells_of_the_last_failure(world: World) -> None:
    def fail() -> None:
        raise Unavailable("EC2 is away")

    world.looked = fail

    with pytest.raises(Timeout, match="last seen: nothing; the last poll failed: EC2 is away"):
        StatePoller(world, most=10, first=0.01).wait("a", ready, soon(0.1))


def test_a_refusal_reaches_each_who_waits_as_an_exception_of_its_own(world: World) -> None:
    def refuse() -> None:
        raise PermissionDenied("ec2:DescribeVolumes")

    world.looked = refuse
    watch = StatePoller(world, most=10, first=FIRST)

    def wait(key: str) -> BaseException:
        with pytest.raises(PermissionDenied) as caught:
            watch.wait(key, ready, soon())
        return caught.value

    with ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(wait, "abcd"))
    assert len(set(map(id, errors))) == 4


def test_what_the_wish_raises_is_raised_where_it_was_wished(world: World) -> None:
    world.states = {"a": "error", "b": "ready"}
    watch = StatePoller(world, most=10, first=FIRST)

    def wish(state: str | None) -> bool:
        raise ValueError(state)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(watch.wait, "b", ready, soon())
        with pytest.raises(ValueError, match="error"):
            watch.wait("a", wish, soon())
        assert other.result(10) == "ready"


def test_a_look_that_hangs_does_not_hold_anybody_beyond_the_deadline(world: World) -> None:
    go_on = threading.Event()
    world.looked = lambda: (go_on.wait(60), None)[1]
    watch = StatePoller(world, most=10, first=0.01)

    began = time.monotonic()
    with pytest.raises(Timeout):
        watch.wait("a", ready, soon(0.1))

    assert time.monotonic() - began < 40
    go_on.set()


def test_the_thread_ends_with_the_last_who_waits_and_comes_back_for_the_next(world: World) -> None:
    world.states["a"] = "ready"
    watch = StatePoller(world, most=10, first=0.01)

    for _ in range(3):
        watch.wait("a", ready, soon())
        wait_until_ended("ebs-poller")
