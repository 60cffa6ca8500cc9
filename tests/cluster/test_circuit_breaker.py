"""The circuit breaker of one node, with a clock of its own."""

from __future__ import annotations

import pytest

from csi_multi.cluster.circuit_breaker import RETRY_INTERVAL, CircuitBreaker
from csi_multi.contract import Unavailable


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker("node 'n' (10.0.0.1:9810)", clock, lambda: 1_700_000_000.0)


def test_a_breaker_admits_every_call_until_a_call_fails(breaker: CircuitBreaker) -> None:
    assert not any(breaker.admit() for _ in range(3))


def test_an_open_breaker_refuses_at_once_with_node_time_and_reason(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.record_failure("connection refused")
    clock.now += 1

    with pytest.raises(Unavailable) as found:
        breaker.admit()
    for part in ("node 'n' (10.0.0.1:9810)", "2023-11-14 22:13:20 UTC", "(1 s)", "connection refused"):
        assert part in str(found.value)


def test_after_a_pause_one_caller_tries_and_the_others_are_refused(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.record_failure("connection refused")
    clock.now += RETRY_INTERVAL

    assert breaker.admit()
    with pytest.raises(Unavailable):
        breaker.admit()


def test_a_try_that_never_ends_does_not_keep_the_breaker_open(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.record_failure("connection refused")
    clock.now += RETRY_INTERVAL
    breaker.admit()
    clock.now += RETRY_INTERVAL

    assert breaker.admit()


def test_an_answer_closes_the_breaker(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.record_failure("connection refused")
    clock.now += RETRY_INTERVAL
    breaker.admit()
    breaker.record_success()

    assert not breaker.admit()
    assert breaker.reason() == ""


def test_the_time_since_when_is_that_of_the_first_failure(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.record_failure("one")
    clock.now += 60

    assert "(60 s): two" in str(breaker.record_failure("two"))
