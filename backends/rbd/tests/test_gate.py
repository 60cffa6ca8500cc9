"""The gate closes when the cluster does not answer, lets an attempt through now and then, and opens at an answer."""

from __future__ import annotations

import threading

import pytest
from csi_multi_rbd.gate import IN_A_ROW, RETRY, SLOW, Gate
from csi_multi_rbd.shell import TimedOut
from csi_multi_rbd.statuses import Exists, Full, Missing, Slow, Unreachable

from csi_multi.contract import FailedPrecondition, StorageError, Unavailable


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    return Gate(clock=clock)


def attempt(
    gate: Gate, clock: Clock, error: BaseException | None = None, *, seconds: float = 0.0, telling: bool = True
) -> None:
    """Run a command that takes so long and ends so."""
    with gate.through(1.0, telling=telling):
        clock.now += seconds
        if error:
            raise error


def fail(gate: Gate, clock: Clock, error: BaseException, *, seconds: float = 0.0, telling: bool = True) -> None:
    with pytest.raises(type(error)):
        attempt(gate, clock, error, seconds=seconds, telling=telling)


def is_open(gate: Gate, clock: Clock) -> bool:
    """Look without learning: what is wrong here says nothing about the cluster."""
    try:
        attempt(gate, clock, FailedPrecondition("a look"))
    except FailedPrecondition:
        return True
    except Unavailable:
        return False
    raise AssertionError


def test_a_cluster_that_cannot_be_reached_closes_it_and_the_others_hear_why_and_since_when(
    gate: Gate, clock: Clock
) -> None:
    fail(gate, clock, Unreachable("no monitor answered"), seconds=10)
    clock.now += 2

    with pytest.raises(Unreachable, match=r"no monitor answered; so for 12 s"):
        attempt(gate, clock)


def test_one_attempt_goes_through_after_some_seconds_and_an_answer_opens_it(gate: Gate, clock: Clock) -> None:
    fail(gate, clock, Unreachable("down"))
    clock.now += RETRY

    attempt(gate, clock)

    assert is_open(gate, clock)


def test_an_attempt_that_fails_keeps_it_closed_for_some_seconds_more(gate: Gate, clock: Clock) -> None:
    fail(gate, clock, Unreachable("down"))
    clock.now += RETRY
    fail(gate, clock, Unreachable("still down"), seconds=10)

    with pytest.raises(Unreachable, match="still down; so for 15 s"):
        attempt(gate, clock)


def test_others_are_refused_while_an_attempt_is_under_way(gate: Gate, clock: Clock) -> None:
    fail(gate, clock, Unreachable("down"))
    clock.now += RETRY

    with gate.through(1.0):
        clock.now += 60
        with pytest.raises(Unreachable):
            attempt(gate, clock)


def test_an_attempt_that_dies_does_not_keep_the_place(gate: Gate, clock: Clock) -> None:
    fail(gate, clock, Unreachable("down"))
    clock.now += RETRY
    fail(gate, clock, KeyboardInterrupt())

    attempt(gate, clock)


@pytest.mark.parametrize("error", [Missing("gone"), Exists("there")])
def test_an_answer_that_is_a_refusal_is_an_answer(gate: Gate, clock: Clock, error: StorageError) -> None:
    fail(gate, clock, Unreachable("down"))
    clock.now += RETRY
    fail(gate, clock, error)

    assert is_open(gate, clock)


def test_a_program_that_cannot_run_is_no_answer(gate: Gate, clock: Clock) -> None:
    fail(gate, clock, Unreachable("down"))
    clock.now += RETRY
    fail(gate, clock, Unavailable("rbd could not be started"))
    fail(gate, clock, Unreachable("down"))

    assert not is_open(gate, clock)


def test_one_command_out_of_time_closes_nothing(gate: Gate, clock: Clock) -> None:
    for _ in range(5):
        fail(gate, clock, TimedOut("killed"), seconds=60)
        attempt(gate, clock)

    assert is_open(gate, clock)


@pytest.mark.parametrize("error", [TimedOut("killed"), Slow("an OSD took too long")])
def test_commands_out_of_time_one_after_the_other_close_it(gate: Gate, clock: Clock, error: StorageError) -> None:
    for _ in range(IN_A_ROW):
        assert is_open(gate, clock)
        fail(gate, clock, error, seconds=60)

    assert not is_open(gate, clock)


def test_a_command_that_is_out_of_time_at_once_says_nothing_about_the_cluster(gate: Gate, clock: Clock) -> None:
    for _ in range(5):
        fail(gate, clock, TimedOut("killed"), seconds=SLOW / 2)

    assert is_open(gate, clock)


def test_what_waits_for_something_else_than_the_cluster_does_not_close_it(gate: Gate, clock: Clock) -> None:
    for _ in range(5):
        fail(gate, clock, Slow("waits for a lock"), seconds=60, telling=False)

    assert is_open(gate, clock)


def test_a_request_with_a_wrong_key_does_not_close_it_for_the_others(gate: Gate, clock: Clock) -> None:
    error = Unreachable("the monitors do not accept user client.x")
    error.silent = False
    fail(gate, clock, error, seconds=10)

    assert is_open(gate, clock)


def test_a_full_pool_closes_it_only_where_nothing_is_answered_any_more(gate: Gate, clock: Clock) -> None:
    error = Full("pool 'k8s' is full")
    fail(gate, clock, error, seconds=60)
    assert is_open(gate, clock)

    error.silent = True
    fail(gate, clock, error, seconds=60)

    with pytest.raises(Full, match="pool 'k8s' is full; so for 60 s"):
        attempt(gate, clock)


def test_only_so_many_commands_run_at_once_and_the_rest_wait_for_a_bounded_time() -> None:
    gate, inside, leave = Gate(at_once=2), threading.Barrier(3), threading.Event()

    def stay() -> None:
        with gate.through(5.0):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=stay) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()

    with pytest.raises(Unavailable, match=r"too many commands .* for 0.05 s"), gate.through(0.05):
        pass
    with gate.through(0.05, crowded=False):
        pass
    leave.set()
    for thread in threads:
        thread.join()
    with gate.through(0.05):
        pass


def test_who_waited_for_room_is_refused_when_the_cluster_is_lost_meanwhile() -> None:
    gate, inside, outcome = Gate(at_once=1), threading.Event(), []

    def wait() -> None:
        inside.set()
        try:
            with gate.through(10.0):
                outcome.append("ran")
        except Unreachable:
            outcome.append("refused")

    thread = threading.Thread(target=wait)

    def be_lost() -> None:
        with gate.through(1.0):
            thread.start()
            inside.wait()
            raise Unreachable("down")

    with pytest.raises(Unreachable):
        be_lost()
    thread.join()

    assert outcome == ["refused"]
