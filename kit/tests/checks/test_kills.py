"""Backends that do not survive being killed, and the checks that find it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState
from csi_multi_testing.checks import kills
from csi_multi_testing.fault_injection import ProcessDied
from csi_multi_testing.memory import MemoryBackend, MemoryStorage
from csi_multi_testing.operations import base
from csi_multi_testing.protocol import Target

from csi_multi.contract import Strings, Volume, VolumeRequest

from .killable import judged_killed

STEP = 0.001  # seconds that one call takes which can be killed


class Clock:
    """The time that backends take, in place of the machine's: a kill falls at the step where the check wants it.

    Only backends advance it. One that works in a thread of its own is to be killed: it stops at the step during which
    the one who sleeps meanwhile wakes up, until it is dead.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._left: float | None = None  # of the sleep

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._left = seconds
        until(lambda: self._left is None)

    def work(self, owner: Mortal, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self._now += seconds
            return
        until(lambda: owner.dead or self._left is not None)
        if owner.dead or self._left is None:
            return
        if self._left >= seconds:
            self._left -= seconds
            return
        self._left = None
        until(lambda: owner.dead)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.0001)


CLOCK = Clock()
NUMBER = itertools.count()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))
    monkeypatch.setattr(kills, "time", CLOCK)


class Mortal(MemoryBackend):
    """Takes time for each call that changes something, and can be killed meanwhile."""

    def __init__(self, config: Any, setting: Any, storage: MemoryStorage) -> None:
        super().__init__(config, setting, _Through(storage, self))  # type: ignore[arg-type]
        self.dead = False


class _Through:
    """The storage as a process sees it that may be dead."""

    def __init__(self, storage: MemoryStorage, owner: Mortal) -> None:
        self._shelf = storage
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._shelf, name)
        if name not in ("put", "drop"):
            return found

        def change(*args: Any) -> Any:
            if not self._owner.dead:
                CLOCK.work(self._owner, STEP)
            if self._owner.dead:
                raise ProcessDied(name)
            return found(*args)

        return change


class Torn(Mortal):
    """Changes in two calls what must be changed in one, and forgets what it deletes before it is gone."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        for _ in range(3):
            self.storage.put(self.storage.data, f"draft {next(NUMBER)}", {})
        made = super().create_volume(request)
        for key in [key for key in self.storage.data if key.startswith("draft")][-3:]:
            self.storage.drop(self.storage.data, key)
        return made

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        self.storage.put(self.storage.data, handle, {})
        self.storage.drop(self.storage.volumes, handle)
        CLOCK.work(self, 5 * STEP)
        self.storage.drop(self.storage.data, handle)


class TornCopies(Mortal):
    """Shows what it has not finished."""

    def create_snapshot(self, request: Any) -> Any:
        made = super().create_snapshot(request)
        blocks = self.storage.data[f"@{made.handle}"]
        self.storage.data[f"@{made.handle}"] = {}
        CLOCK.work(self, 5 * STEP)
        self.storage.put(self.storage.data, f"@{made.handle}", blocks)
        return made

    def expand_volume(self, request: Any) -> Any:
        blocks = self.storage.data.get(request.handle, {})
        grown = super().expand_volume(request)
        self.storage.data[request.handle] = {}
        CLOCK.work(self, 5 * STEP)
        self.storage.put(self.storage.data, request.handle, blocks)
        return grown


BROKEN = [
    (kills.a_creation_survives_kill_9_at_any_moment, Torn, "draft"),
    (kills.a_deletion_survives_kill_9_at_any_moment, Torn, "remaining"),
    (kills.an_expansion_survives_kill_9_at_any_moment, TornCopies, "the first block differs"),
    (kills.a_snapshot_survives_kill_9_at_any_moment, TornCopies, "the first block differs"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    if CHECKS[check.__name__.replace("_", " ")].target is not Target.WIRE:
        fails(check, backend, words)
        return
    outcome = judged_killed(check, memory.storage(backend))
    assert outcome.state is CheckState.FAILED, outcome.text
    assert words in outcome.text


@pytest.mark.parametrize("check", [one.body for one in CHECKS.values() if one.group == "kills"])
def test_who_can_be_killed_at_any_moment_passes(check: Any) -> None:
    outcome = judged_killed(check, memory.storage(Mortal))

    assert outcome.state is CheckState.PASSED, outcome.text
