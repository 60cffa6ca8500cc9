"""Delayed effects: after some seconds, after some describes, or never."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wait:
    """How long something takes. Both have to pass."""

    seconds: float = 0.0
    looks: int = 0  # describes that still show the old state


NOW = Wait()
FOREVER = Wait(seconds=math.inf)


def seconds(number: float) -> Wait:
    return Wait(seconds=number)


def looks(number: int) -> Wait:
    return Wait(looks=number)


@dataclass(slots=True)
class Takes:
    """How long EC2 needs for what it does in the background. Set these before the call that they are for.

    Looks are counted by DescribeVolumes for volumes and attachments, and by DescribeVolumesModifications and
    DescribeSnapshots for theirs; calls of any region and about any volume count.
    """

    creating: Wait = NOW
    attaching: Wait = NOW  # FOREVER: stuck, until it is detached
    detaching: Wait = NOW
    modifying: Wait = NOW
    optimizing: Wait = NOW
    snapshot: Wait = NOW
    appearing: Wait = NOW  # until a describe shows what was created
    showing: Wait = NOW  # until describes show what was attached or detached: till then all is as it was before
    vanishing: Wait = NOW  # until describes show no more what was deleted (its state is `deleting`)


@dataclass(frozen=True, slots=True)
class _Due:
    at: float
    action: str
    looks: int
    then: Callable[[], object]


class Clock:
    """The time, which a test can advance, and the delayed effects."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._looks: Counter[str] = Counter()
        self._due: list[_Due] = []

    def now(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, number: float) -> None:
        """Advance the time by so many seconds."""
        self._ahead += number

    def looked(self, action: str) -> None:
        self._looks[action] += 1

    def after(self, wait: Wait, action: str, then: Callable[[], object]) -> None:
        """Do `then` when so many seconds have passed and so many of this action were answered; at once for NOW."""
        if wait == NOW:
            then()
        else:
            self._due.append(_Due(self.now() + wait.seconds, action, self._looks[action] + wait.looks, then))

    def settle(self) -> None:
        """Apply the effects that are due, and those that become due by them."""
        while due := next((each for each in self._due if self._is_due(each)), None):
            self._due.remove(due)
            due.then()

    def _is_due(self, each: _Due) -> bool:
        return self.now() >= each.at and self._looks[each.action] >= each.looks
