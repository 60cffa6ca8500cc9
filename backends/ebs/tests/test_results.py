"""Results that several threads wait for."""

from __future__ import annotations

import threading

import pytest
from csi_multi_ebs.results import NotYet, Result

from .thread_helpers import run_together


def test_all_that_wait_get_the_value() -> None:
    result: Result[str] = Result()
    threading.Timer(0.05, result.set_result, ("there",)).start()

    assert run_together(*[lambda: result.get(30)] * 20, lambda: result.get(None)) == ["there"] * 21
    assert result.get(0) == "there"


def test_each_that_waits_raises_an_error_of_its_own() -> None:
    result: Result[str] = Result()
    result.set_exception(error := ValueError("broken"))
    raised = []
    for _ in range(2):
        with pytest.raises(ValueError, match="broken") as caught:
            result.get(30)
        raised.append(caught.value)

    assert len({id(one) for one in (*raised, error)}) == 3
    assert [one.__cause__ for one in raised] == [error, error]


@pytest.mark.parametrize("seconds", [0.05, 0.0, -1.0])
def test_who_waits_longer_than_he_wants_gives_up(seconds: float) -> None:
    result: Result[str] = Result()

    with pytest.raises(NotYet):
        result.get(seconds)
    result.set_result("late")
    assert result.get(seconds) == "late"


def test_a_result_that_comes_while_somebody_begins_to_wait_is_not_missed() -> None:
    for _ in range(200):
        result: Result[float] = Result()
        assert len(set(run_together(lambda: result.get(30), lambda: result.set_result(1.0) or 1.0))) == 1  # noqa: B023
