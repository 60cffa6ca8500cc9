"""The circuit opens when the cluster does not answer, allows an attempt now and then, and closes at an answer."""

from __future__ import annotations

import threading

import pytest
from csi_multi_rbd.circuit_breaker import IN_A_ROW, RETRY, SLOW, CircuitBreaker
from csi_multi_rbd.errors import ClusterUnreachable, ImageNotFound, NameTaken, OperationTimedOut, PoolFull

from csi_multi.contract import CommandTimedOut, FailedPrecondition, StorageError, Unavailable


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(clock=clock)


def attempt(
    breaker: CircuitBreaker,
    clock: Clock,
    error: BaseException | None = None,
    *,
    seconds: float = 0.0,
    timed: bool = True,
) -> None:
    """Run a command that takes so long and ends so."""
    with breaker.command(1.0, timed=timed):
        clock.now += seconds
        if error:
            raise error


def fail(
    breaker: CircuitBreaker, clock: Clock, error: BaseException, *, seconds: float = 0.0, timed: bool = True
) -> None:
    with pytest.raises(type(error)):
        attempt(breaker, clock, error, seconds=seconds, timed=timed)


def is_open(breaker: CircuitBreaker, clock: Clock) -> bool:
    """Look without learning: what is wrong here says nothing about the cluster."""
    try:
        attempt(breaker, clock, FailedPrecondition("a look"))
    except FailedPrecondition:
        return True
    except Unavailable:
        return False
    raise AssertionError


def test_a_cluster_that_cannot_be_reached_closes_it_and_the_others_hear_why_and_since_when(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, clock, ClusterUnreachable("no monitor answered"), seconds=10)
    clock.now += 2

    with pytest.raises(ClusterUnreachable, match=r"no monitor answered; this has lasted 12 s"):
        attempt(breaker, clock)


def test_one_attempt_goes_through_after_some_seconds_and_an_answer_opens_it(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, clock, ClusterUnreachable("down"))
    clock.now += RETRY

    attempt(breaker, clock)

    assert is_open(breaker, clock)


def test_an_attempt_that_fails_keeps_it_closed_for_some_seconds_more(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, clock, ClusterUnreachable("down"))
    clock.now += RETRY
    fail(breaker, clock, ClusterUnreachable("still down"), seconds=10)

    with pytest.raises(ClusterUnreachable, match="still down; this has lasted 15 s"):
        attempt(breaker, clock)


def test_others_are_refused_while_an_attempt_is_under_way(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, clock, ClusterUnreachable("down"))
    clock.now += RETRY

    with breaker.command(1.0):
        clock.now += 60
        with pytest.raises(ClusterUnreachable):
            attempt(breaker, clock)


def test_an_attempt_that_dies_does_not_keep_the_place(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, clock, ClusterUnreachable("down"))
    clock.now += RETRY
    fail(breaker, clock, KeyboardInterrupt())

    attempt(breaker, clock)


@pytest.mark.parametrize("error", [ImageNotFound("gone"), NameTaken("there")])
def test_an_answer_that_is_a_refusal_is_an_answer(breaker: CircuitBreaker, clock: Clock, error: StorageError) -> None:
    fail(breaker, clock, ClusterUnreachable("down"))
    clock.now += RETRY
    fail(breaker, clock, error)

    assert is_open(breaker, clock)


def test_a_program_that_cannot_run_is_no_answer(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, clock, ClusterUnreachable("down"))
    clock.now += RETRY
    fail(breaker, clock, Unavailable("rbd could not be started"))
    fail(breaker, clock, ClusterUnreachable("down"))

    assert not is_open(breaker, clock)


def test_one_command_out_of_time_closes_nothing(breaker: CircuitBreaker, clock: Clock) -> None:
    for _ in range(5):
        fail(breaker, clock, CommandTimedOut(("rbd",), 60), seconds=60)
        attempt(breaker, clock)

    assert is_open(breaker, clock)


@pytest.mark.parametrize("error", [CommandTimedOut(("rbd",), 60), OperationTimedOut("an OSD took too long")])
def test_commands_out_of_time_one_after_the_other_close_it(
    breaker: CircuitBreaker, clock: Clock, error: StorageError
) -> None:
    for _ in range(IN_A_ROW):
        assert is_open(breaker, clock)
        fail(breaker, clock, error, seconds=60)

    assert not is_open(breaker, clock)


def test_a_command_that_is_out_of_time_at_once_says_nothing_about_the_cluster(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    for _ in range(5):
        fail(breaker, clock, CommandTimedOut(("rbd",), 60), seconds=SLOW / 2)

    assert is_open(breaker, clock)


def test_what_waits_for_something_else_than_the_cluster_does_not_close_it(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    for _ in range(5):
        fail(breaker, clock, OperationTimedOut("waits for a lock"), seconds=60, timed=False)

    assert is_open(breaker, clock)


def test_a_request_with_a_wrong_key_does_not_close_it_for_the_others(breaker: CircuitBreaker, clock: Clock) -> None:
    error = ClusterUnreachable("the monitors do not accept user client.x")
    error.silent = False
    fail(breaker, clock, error, seconds=10)

    assert is_open(breaker, clock)


def test_a_full_pool_closes_it_only_where_nothing_is_answered_any_more(breaker: CircuitBreaker, clock: Clock) -> None:
    error = PoolFull("pool 'k8s' is full")
    fail(breaker, clock, error, seconds=60)
    assert is_open(breaker, clock)

    error.silent = True
    fail(breaker, clock, error, seconds=60)

    with pytest.raises(PoolFull, match="pool 'k8s' is full; this has lasted 60 s"):
        attempt(breaker, clock)


def test_only_so_many_commands_run_at_once_and_the_rest_wait_for_a_bounded_time() -> None:
    breaker, inside, leave = CircuitBreaker(at_once=2), threading.Barrier(3), threading.Event()

    def stay() -> None:
        with breaker.command(5.0):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=stay) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait()

    with (
        pytest.raises(Unavailable, match=r"the limit of commands that run at once was reached for 0.05 s"),
        breaker.command(0.05),
    ):
        pass
    with breaker.command(0.05, limited=False):
        pass
    leave.set()
    for thread in threads:
        thread.join()
    with breaker.command(0.05):
        pass


def test_who_waited_for_room_is_refused_when_the_cluster_is_lost_meanwhile() -> None:
    breaker, inside, outcome = CircuitBreaker(at_once=1), threading.Event(), []

    def wait() -> None:
        inside.set()
        try:
            with breaker.command(10.0):
                outcome.append("ran")
        except ClusterUnreachable:
            outcome.append("refused")

    thread = threading.Thread(target=wait)

    def be_lost() -> None:
        with breaker.command(1.0):
            thread.start()
            inside.wait()
            raise ClusterUnreachable("down")

    with pytest.raises(ClusterUnreachable):
        be_lost()
    thread.join()

    assert outcome == ["refused"]
