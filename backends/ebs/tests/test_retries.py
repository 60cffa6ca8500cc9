"""Retries on a clock of their own, against a bucket of tokens and against errors by chance: nothing really waits."""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from csi_multi_ebs.retries import LONGEST_PAUSE, UNUSED_SECONDS, Clock, Outcome, Retries

from csi_multi.contract import Unavailable

DOCUMENT = Path(__file__).parents[3] / "docs/ebs.md"


class Refused(Exception):
    """EC2 throttles."""


class Broken(Exception):
    """The connection broke."""


class Final(Exception):
    """EC2 has answered."""


OUTCOMES = {Refused: Outcome.THROTTLED, Broken: Outcome.TRANSIENT, Final: Outcome.FINAL}


def outcome(error: Exception) -> Outcome:
    return OUTCOMES[type(error)]


class VirtualTime:
    """A time that passes only while all threads sleep. One thread runs at a time, so every run is the same."""

    def __init__(self, seed: int = 8) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.clock = Clock(lambda: self.now, self.sleep, self.random.random)
        self._lock = threading.Lock()
        self._asleep: list[tuple[float, int, threading.Event]] = []
        self._number = 0
        self._ended = threading.Event()

    def sleep(self, seconds: float) -> None:
        wake = threading.Event()
        self._put(self.now + seconds, wake)
        self._wake_next()
        wake.wait()

    def run(self, tasks: list[Callable[[], None]]) -> None:
        """Run all tasks from now on, and return when they have ended."""
        threads = [threading.Thread(target=self._task, args=(task,), daemon=True) for task in tasks]
        for thread in threads:
            thread.start()
        while len(self._asleep) < len(tasks):
            threading.Event().wait(0.001)  # they start
        self._wake_next()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def _task(self, task: Callable[[], None]) -> None:
        wake = threading.Event()
        self._put(self.now, wake)
        wake.wait()
        try:
            task()
        finally:
            self._wake_next()

    def _put(self, at: float, wake: threading.Event) -> None:
        with self._lock:
            self._number += 1
            heapq.heappush(self._asleep, (at, self._number, wake))

    def _wake_next(self) -> None:
        with self._lock:
            if self._asleep:
                self.now, _, wake = heapq.heappop(self._asleep)
                wake.set()


class Endpoint:
    """A fake EC2: `accepts` decides about each call, which takes 50 ms."""

    def __init__(self, time: VirtualTime, accepts: Callable[[], bool]) -> None:
        self._time = time
        self._accepts = accepts
        self.calls = self.done = 0

    def send(self) -> None:
        self.calls += 1
        self._time.sleep(0.05)
        if not self._accepts():
            raise Refused
        self.done += 1


class Bucket:
    def __init__(self, time: VirtualTime, size: float = 100, per_second: float = 5) -> None:
        self._time, self._size, self._per_second = time, size, per_second
        self._tokens, self._at = size, 0.0

    def __call__(self) -> bool:
        self._tokens = min(self._tokens + (self._time.now - self._at) * self._per_second, self._size)
        self._at = self._time.now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def burst(
    time: VirtualTime, endpoint: Endpoint, number: int, *, attempts: int = 4, seconds: float = 50, gap: float = 0.005
) -> list[Exception]:
    """Make so many calls, one each `gap` seconds; return the errors."""
    retries, errors = Retries(attempts, time.clock), []

    def task(at: float) -> None:
        time.sleep(at)
        try:
            retries.call("CreateVolume", endpoint.send, tuple(OUTCOMES), outcome, time.now + seconds)
        except Exception as error:
            errors.append(error)

    time.run([lambda at=one * gap: task(at) for one in range(number)])
    return errors


def test_a_burst_above_the_bucket_is_served_at_its_rate_with_few_refusals() -> None:
    time = VirtualTime()
    endpoint = Endpoint(time, Bucket(time))

    errors = burst(time, endpoint, 200)

    assert errors == []
    assert endpoint.done == 200
    assert endpoint.calls <= 240
    assert time.now <= 24  # 20 is what the bucket allows


@pytest.mark.parametrize("per_second", [1, 2, 20])
def test_other_rates_are_found(per_second: float) -> None:
    time = VirtualTime()
    endpoint = Endpoint(time, Bucket(time, 50, per_second))

    errors = burst(time, endpoint, 50 + int(30 * per_second), seconds=math.inf, attempts=8)

    assert errors == []
    assert endpoint.calls <= 1.45 * endpoint.done + 20
    assert time.now <= 45


@pytest.mark.parametrize("seed", range(5))
def test_errors_by_chance_slow_nothing_down(seed: int) -> None:
    time = VirtualTime(seed)
    endpoint = Endpoint(time, lambda: time.random.random() >= 0.3)

    errors = burst(time, endpoint, 1000)

    assert len(errors) <= 20  # each call is tried four times
    assert endpoint.calls <= 1500
    assert time.now <= 5 + 1.5 * LONGEST_PAUSE  # calls begin for five seconds, and the last ones are repeated


def test_where_ec2_refuses_everything_few_calls_are_made_and_nobody_waits_beyond_the_deadline() -> None:
    time = VirtualTime()
    endpoint = Endpoint(time, lambda: False)

    errors = burst(time, endpoint, 500, seconds=10, attempts=50)

    assert len(errors) == 500
    assert {type(error) for error in errors} <= {Refused, Unavailable}
    assert endpoint.calls <= 500 + 60
    assert time.now <= 500 * 0.005 + 10 + 1


def test_an_action_does_not_wait_for_another_one() -> None:
    time = VirtualTime()
    retries, refusing = Retries(4, time.clock), Endpoint(time, lambda: False)
    attaching = Endpoint(time, lambda: True)
    began = []

    def create() -> None:
        with pytest.raises(Exception, match=r"^"):
            retries.call("CreateVolume", refusing.send, tuple(OUTCOMES), outcome, time.now + 20)

    def attach() -> None:
        time.sleep(10)
        began.append(time.now)
        retries.call("AttachVolume", attaching.send, tuple(OUTCOMES), outcome, time.now + 20)
        began.append(time.now)

    time.run([*[create] * 40, attach])
    assert began[1] - began[0] == pytest.approx(0.05)


def test_the_limit_ends_once_nobody_has_waited_for_a_while() -> None:
    time = VirtualTime()
    bucket = Bucket(time)
    endpoint = Endpoint(time, bucket)
    retries = Retries(4, time.clock)
    took = []

    def task(at: float) -> None:
        time.sleep(at)
        began = time.now
        retries.call("CreateVolume", endpoint.send, tuple(OUTCOMES), outcome, time.now + 50)
        took.append((at, time.now - began))

    later = 30 + UNUSED_SECONDS
    time.run([lambda at=at: task(at) for at in [0.0] * 150 + [later] * 20])
    assert max(seconds for at, seconds in took if at == 0.0) > 5
    assert max(seconds for at, seconds in took if at == later) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("error", "sends"), [(Refused, 3), (Broken, 3), (Final, 1)], ids=lambda given: getattr(given, "__name__", given)
)
def test_a_failure_is_repeated_unless_it_is_an_answer(error: type[Exception], sends: int) -> None:
    time = VirtualTime()
    times = []

    def send() -> None:
        times.append(time.now)
        raise error

    def task() -> None:
        with pytest.raises(error):
            Retries(3, time.clock).call("X", send, tuple(OUTCOMES), outcome, 50.0)

    time.run([task])
    assert len(times) == sends


def test_nothing_is_sent_again_after_the_deadline() -> None:
    time = VirtualTime()
    times = []

    def send() -> None:
        times.append(time.now)
        time.sleep(2)
        raise Broken

    def task() -> None:
        with pytest.raises(Broken):
            Retries(50, time.clock).call("X", send, tuple(OUTCOMES), outcome, 1.0)

    time.run([task])
    assert times == [0.0]


def test_refusals_are_counted_by_action_also_those_after_which_another_attempt_helped() -> None:
    time, answers = VirtualTime(), iter([Refused(), Broken(), Refused(), None])
    retries = Retries(9, time.clock)

    def send() -> None:
        if (failure := next(answers, None)) is not None:
            raise failure

    def calls() -> None:
        retries.call("CreateVolume", send, (Refused, Broken), outcome, math.inf)
        retries.call("DescribeVolumes", send, (Refused, Broken), outcome, math.inf)

    time.run([calls])
    counted = {one.labels["operation"]: one.value for one in retries.metrics()}
    assert counted == {"CreateVolume": 2, "DescribeVolumes": 0}
    assert f"`csi_multi_ebs_{retries.metrics()[0].metric_name}_total`" in DOCUMENT.read_text()
