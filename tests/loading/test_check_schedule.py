"""A storage that answers RPCs is not asked whether it answers; one that fails is asked at once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import NotFound, Timeout, Unavailable
from csi_multi.loading import check_schedule
from csi_multi.loading.check_schedule import IDLE_SECONDS, CheckSchedule
from csi_multi.loading.registry import Registry

USUAL = 30.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_check_that_does_work_is_made_at_the_usual_interval_whatever_happens(clock: Clock) -> None:
    schedule = CheckSchedule(only_asks=False, clock=clock)
    clock.now += 20
    schedule.record(True)

    assert schedule.left(USUAL, down=False) == 10


def test_a_storage_that_nobody_uses_is_checked_every_few_minutes(clock: Clock) -> None:
    schedule = CheckSchedule(only_asks=True, clock=clock)

    assert schedule.left(USUAL, down=False) == IDLE_SECONDS
    assert schedule.left(2 * IDLE_SECONDS, down=False) == 2 * IDLE_SECONDS  # what is configured, if that is rarer


def test_success_puts_the_check_off(clock: Clock) -> None:
    schedule = CheckSchedule(only_asks=True, clock=clock)
    for _ in range(10):
        clock.now += IDLE_SECONDS - 1
        schedule.record(True)

    assert schedule.left(USUAL, down=False) == IDLE_SECONDS


def test_a_failure_makes_the_check_due_and_many_cost_no_more_than_the_usual_interval(clock: Clock) -> None:
    schedule = CheckSchedule(only_asks=True, clock=clock)
    clock.now += USUAL
    schedule.record(False)
    assert schedule.left(USUAL, down=False) <= 0

    schedule.begin()
    schedule.end()
    assert schedule.left(USUAL, down=False) == IDLE_SECONDS
    schedule.record(False)
    schedule.record(True)
    assert schedule.left(USUAL, down=False) == USUAL


def test_a_storage_that_is_down_is_checked_at_the_usual_interval(clock: Clock) -> None:
    schedule = CheckSchedule(only_asks=True, clock=clock)
    schedule.record(True)

    assert schedule.left(USUAL, down=True) == USUAL


def test_a_failure_and_the_end_wake_the_thread_that_waits() -> None:
    schedule = CheckSchedule(only_asks=True)
    due: list[bool] = []
    interval = [0.0]  # over at once, if only a failure is known

    def wait() -> None:
        due.append(schedule.wait(lambda: 3600.0 if not schedule._failed else interval[0], lambda: False))

    for event in (lambda: schedule.record(False), schedule.retire):
        schedule.begin()
        thread = threading.Thread(target=wait)
        thread.start()
        event()
        thread.join(30)
        assert not thread.is_alive()
    assert due == [True, False]


class Counting(MemoryBackend):
    check_only_asks = True
    checks = 0
    trouble: Exception | None = None

    def check(self) -> None:
        self.checks += 1

    def get_volume(self, handle: str) -> Any:
        if self.trouble:
            raise self.trouble
        return super().get_volume(handle)


@pytest.mark.parametrize(
    ("trouble", "checks"),
    [(Unavailable("away"), 2), (Timeout("slow"), 2), (OSError("a bug"), 2), (NotFound("no such volume"), 1)],
)
def test_an_rpc_that_fails_lets_the_storage_be_checked(
    trouble: Exception, checks: int, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_schedule, "IDLE_SECONDS", 3600.0)
    instance = make("fast", Counting)
    registry = Registry([instance])
    registry.start(0.01)
    _until(lambda: instance.backend.checks == 1 and instance.changed_at is not None)

    instance.backend.trouble = trouble
    with pytest.raises(Exception, match=r"."):
        instance.backend.get_volume("v")

    _until(lambda: instance.backend.checks >= checks)
    instance.backend.trouble = None
    assert instance.schedule.left(USUAL, down=False) > (USUAL if checks == 1 else 0)
    assert instance.backend.checks == checks
    registry.close()


def _until(true: Any) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)
