"""Injected faults: errors, broken connections and delays, before or after the effect of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from .fake_ec2_calls import Call, Dropped, Refusal


@dataclass(slots=True)
class Fault:
    """A fault for some calls."""

    action: str  # "*": any
    times: float  # math.inf: for ever
    skip: int  # so many calls pass before
    after_effect: bool  # EC2 does what was asked, and only the answer is lost
    when: Callable[[Call], bool]
    error: Refusal | Dropped | None = None
    seconds: float = 0.0

    def takes(self, call: Call) -> bool:
        """Return whether the fault applies to this call, and count it."""
        if self.times <= 0 or self.action not in ("*", call.action) or not self.when(call):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Faults:
    """All faults, in order. A call meets the first one that fails, and all delays."""

    def __init__(self) -> None:
        self._all: list[Fault] = []
        self._over = threading.Event()

    def add(self, fault: Fault) -> Fault:
        self._all.append(fault)
        return fault

    def of(self, call: Call) -> list[Fault]:
        """Return the faults for this call. Not thread-safe."""
        met: list[Fault] = []
        for fault in self._all:
            if fault.error and any(other.error for other in met):
                continue
            if fault.takes(call):
                met.append(fault)
        return met

    def happen(self, met: list[Fault], *, after_effect: bool) -> None:
        """Apply the delays and errors. Raises Dropped when the test ended meanwhile."""
        for fault in met:
            if fault.after_effect is not after_effect:
                continue
            if self._over.wait(fault.seconds):
                raise Dropped
            if fault.error:
                raise fault.error

    def end(self) -> None:
        """End all delays: the test is over."""
        self._over.set()
