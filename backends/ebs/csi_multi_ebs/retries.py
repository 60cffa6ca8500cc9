"""Retries of a call, and the rate of an action while EC2 throttles it.

EC2 gives each action of an account a bucket of tokens: a burst is served, then a few calls per second. Twelve refusals
in a row mean that the bucket is empty, and not that calls fail by chance. From then on the calls of the action queue,
at a rate that grows with each success and falls with a refusal, so that few are refused. Calls that are refused by
chance are repeated after a random pause, at no limited rate.

Nobody waits beyond the deadline of the RPC. An action never waits for another one.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import TypeVar

from csi_multi.contract import Metric, MetricKind, Unavailable

T = TypeVar("T")

EMPTY_AFTER = 12  # refusals in a row; of calls that are refused by chance, each third, two million in a row have none
RECENT, TOO_MANY = 50, 30  # also when so many of the last ones are refused
FIRST_RATE = 5.0  # calls per second with which a limit begins: what EC2 refills of most actions that change something
LEAST_RATE = 0.5
MOST_RATE = 100.0
GROWTH, MOST_GROWTH = 0.0025, 0.1  # of the rate for a success, for each success since the last cut; and at most
CUT = 0.8  # for each refusal of a call that was sent after the last cut
RECHECK_SECONDS = 1.0  # after which one that waits looks again whether it is its turn
UNUSED_SECONDS = 10.0  # without anybody who has to wait, after which the limit ends
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds; a pause is random, up to that, which doubles with each attempt


class Outcome(Enum):
    """What a failure of a call means for another attempt."""

    THROTTLED = auto()  # EC2 did nothing
    TRANSIENT = auto()
    FINAL = auto()  # an answer


@dataclass(frozen=True, slots=True)
class Clock:
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = random.random


class Throttle:
    """The limit of one action, and those that wait for their turn, the oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[bool] = deque(maxlen=RECENT)  # whether the last calls were refused
        self._in_a_row = 0
        self._rate = 0.0  # calls per second; 0: no limit
        self._growth = 0.0  # of the rate for the next success
        self._since = 0  # number of the limit, and of its cuts: what was sent before one says nothing about it
        self._queue: deque[object] = deque()
        self._next = 0.0  # when the next call may be sent
        self._waited = 0.0  # when a call was last told to wait
        self.refused = 0  # calls, ever

    @property
    def limited(self) -> bool:
        return self._rate > 0

    def join(self) -> object:
        """Queue up; return the ticket."""
        with self._lock:
            self._queue.append(ticket := object())
            return ticket

    def leave(self, ticket: object) -> None:
        with self._lock:
            if ticket in self._queue:
                self._queue.remove(ticket)

    def turn(self, ticket: object, now: float) -> float:
        """Return in how many seconds the turn of the ticket probably comes; 0: it is its turn, and it has left."""
        with self._lock:
            if self._rate and now - self._waited > UNUSED_SECONDS and now >= self._next:
                self._end_limit()
            position = self._queue.index(ticket) if self._rate else 0
            left = position / self._rate + max(self._next - now, 0.0) if self._rate else 0.0
            if left > 0:
                self._waited = now
                return left
            self._queue.remove(ticket)
            if self._rate:
                self._next = max(self._next, now - 1 / self._rate) + 1 / self._rate
            return 0.0

    def sent(self) -> int:
        """Return what `record` needs about a call that is sent now."""
        return self._since

    def record(self, refused: bool, sent: int, now: float) -> None:
        """Adapt the rate to the outcome of a call."""
        with self._lock:
            self._recent.append(refused)
            self.refused += refused
            self._in_a_row = self._in_a_row + 1 if refused else 0
            if not self._rate:
                if self._in_a_row >= EMPTY_AFTER or sum(self._recent) >= TOO_MANY:
                    self._begin_limit(now)
            elif sent == self._since:
                self._adapt(refused)

    def _begin_limit(self, now: float) -> None:
        self._rate, self._growth = FIRST_RATE, MOST_GROWTH
        self._since += 1
        self._next, self._waited = now + 1 / FIRST_RATE, now

    def _end_limit(self) -> None:
        self._rate, self._in_a_row = 0.0, 0
        self._recent.clear()

    def _adapt(self, refused: bool) -> None:
        if refused:
            self._rate, self._growth = max(self._rate * CUT, LEAST_RATE), 0.0
            self._since += 1
        else:
            self._growth = min(self._growth + GROWTH, MOST_GROWTH)
            self._rate = min(self._rate * (1 + self._growth), MOST_RATE)


class Retries:
    """Repeats calls. Thread-safe."""

    def __init__(self, attempts: int, clock: Clock | None = None) -> None:
        self._attempts = attempts
        self._clock = clock or Clock()
        self._lock = threading.Lock()
        self._throttles: dict[str, Throttle] = {}

    def call(
        self,
        action: str,
        send: Callable[[], T],
        failures: tuple[type[Exception], ...],
        outcome: Callable[[Exception], Outcome],
        deadline: float,
    ) -> T:
        """Return what `send` returns, after as many attempts as are allowed. Raises its last error.

        `outcome` says what an error of `failures` means. `deadline` is a monotonic time: after it nothing is sent
        again. Raises Unavailable when EC2 throttles the action and the first turn does not come before it.
        """
        throttle, failure = self._throttle(action), None
        for attempt in count(1):
            if not self._wait_for_turn(throttle, deadline):
                raise failure or Unavailable(
                    f"{action}: EC2 throttles this call (RequestLimitExceeded), and others wait for it already; try "
                    "again"
                )
            sent = throttle.sent()
            try:
                result = send()
            except failures as error:
                kind, failure = outcome(error), error
                if kind is not Outcome.TRANSIENT:
                    throttle.record(kind is Outcome.THROTTLED, sent, self._clock.monotonic())
                if kind is Outcome.FINAL or attempt >= self._attempts or not self._pause(throttle, attempt, deadline):
                    raise
            else:
                throttle.record(False, sent, self._clock.monotonic())
                return result
        raise AssertionError

    def metrics(self) -> tuple[Metric, ...]:
        """Return how many calls EC2 has throttled, by action."""
        with self._lock:
            return tuple(_metric(action, throttle.refused) for action, throttle in self._throttles.items())

    def _throttle(self, action: str) -> Throttle:
        with self._lock:
            return self._throttles.setdefault(action, Throttle())

    def _wait_for_turn(self, throttle: Throttle, deadline: float) -> bool:
        """Wait; return False when the turn does not come before the deadline, even if EC2 becomes twice as fast."""
        if not throttle.limited:
            return True
        ticket = throttle.join()
        try:
            while (left := throttle.turn(ticket, now := self._clock.monotonic())) > 0:
                if left / 2 > deadline - now:
                    return False
                self._clock.sleep(left if left < FIRST_PAUSE else min(left / 2, RECHECK_SECONDS))  # the rate may grow
            return True
        finally:
            throttle.leave(ticket)

    def _pause(self, throttle: Throttle, attempt: int, deadline: float) -> bool:
        """Wait before the next attempt; return False when the deadline comes first. Those in the queue wait there."""
        pause = 0.0
        if not throttle.limited:
            pause = self._clock.random() * min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE)
        if self._clock.monotonic() + pause > deadline:
            return False
        if pause:
            self._clock.sleep(pause)
        return True


def _metric(action: str, refused: int) -> Metric:
    return Metric(
        metric_name="throttled_calls",
        text="Calls that EC2 throttled, also those that were repeated then.",
        kind=MetricKind.COUNTER,
        value=refused,
        labels={"operation": action},
    )
