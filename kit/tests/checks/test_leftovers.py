"""Backends whose resume ends at the first thing that is in its way, and the check that finds it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import leftovers
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base
from csi_multi_testing.storage import Storage

from csi_multi.contract import Unavailable, Volume

from .file_backend import SNAPSHOTS, VOLUMES, FileBackend, over_files
from .test_foreign import Careful, beside


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class Resuming(Careful):
    """Correct: waits for who is at work, removes the bytes of what has no record, and tries again with each check."""

    def check(self) -> None:
        super().check()
        Resuming.resume(self)

    def resume(self) -> None:
        with self.storage.lock:
            for key in sorted({*self.storage.data, *self.storage.volumes}):
                self.settle(key)

    def settle(self, key: str) -> None:
        rows = self.storage.snapshots if key.startswith("@") else self.storage.volumes
        if key.removeprefix("@") not in rows and key in self.storage.data:
            self.storage.drop(self.storage.data, key)


class ResumesOnce(Resuming):
    """Is not repeated when the storage was away at the start."""

    def check(self) -> None:
        MemoryBackend.check(self)


class EndsAtForeign(Resuming):
    """Meets something of another driver, and takes that for the end of what it has to do."""

    def settle(self, key: str) -> None:
        self.guard(key)
        super().settle(key)


class GivesUp(Resuming):
    """Leaves everything to the next start when another process is at work."""

    def resume(self) -> None:
        if not self.storage.lock.acquire(blocking=False):
            return
        try:
            super().resume()
        finally:
            self.storage.lock.release()


class EndsAtDamaged(FileBackend):
    """Reads every record in the order of names, and stops at one that cannot be read."""

    def resume(self) -> None:
        with self._locked():
            for name in sorted(os.listdir(self.root / VOLUMES), key=lambda name: name.removeprefix(".")):
                self.settle(self.root / VOLUMES / name)

    def settle(self, entry: Path) -> None:
        if entry.name.startswith("."):
            shutil.rmtree(entry)
        else:
            self._read(VOLUMES, entry.name, Volume)


class StepsOverDamaged(EndsAtDamaged):
    """Correct."""

    def settle(self, entry: Path) -> None:
        with suppress(Unavailable):
            super().settle(entry)


def without_obstacles(kind: type[MemoryBackend]) -> Callable[[], Storage]:
    return beside(kind, foreign=None)


CHECK = leftovers.resume_ends_what_several_crashed_calls_left_whatever_is_beside_it


class ResumesWithoutALock(FileBackend):
    """Removes what it finds, and does not expect that somebody else does."""

    def resume(self) -> None:
        for kind in (VOLUMES, SNAPSHOTS):
            for name in os.listdir(self.root / kind):
                if name.startswith("."):
                    shutil.rmtree(self.root / kind / name)


BROKEN = [
    (
        leftovers.two_processes_that_start_at_once_end_the_same_work,
        over_files(ResumesWithoutALock),
        "while another process made resume of a process that starts at the same time: raised FileNotFoundError",
    ),
    (
        leftovers.resume_ends_what_several_crashed_calls_left_whatever_is_beside_it,
        beside(EndsAtForeign),
        "then resume beside what belongs to others: it left 1 more than without that, and raised FailedPrecondition",
    ),
    (
        leftovers.resume_ends_what_several_crashed_calls_left_whatever_is_beside_it,
        without_obstacles(GivesUp),
        "then resume beside what another process works on: it left 2 more than without that; what is in the way",
    ),
    (
        leftovers.resume_ends_what_several_crashed_calls_left_whatever_is_beside_it,
        beside(ResumesOnce),
        "then resume beside a storage that was away until the first check(): it left 2 more",
    ),
    (
        leftovers.resume_ends_what_several_crashed_calls_left_whatever_is_beside_it,
        over_files(EndsAtDamaged),
        "then resume beside a volume whose record cannot be read: it left 1 more than without that, and raised",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize(
    ("storage", "count"), [(beside(Resuming), 3), (over_files(StepsOverDamaged), 2)], ids=["memory", "files"]
)
def test_a_resume_that_steps_over_what_is_in_its_way_passes(
    judged: Any, storage: Callable[[], Storage], count: int
) -> None:
    outcome = judged(CHECK, storage)

    assert outcome.state is CheckState.PASSED, outcome.text
    assert len([note for note in outcome.notes if note.startswith("resume beside")]) == count


def test_a_resume_that_leaves_all_to_the_repeated_request_is_told(judged: Any) -> None:
    outcome = judged(CHECK, MemoryBackend)

    assert outcome.state is CheckState.SKIPPED
    assert "removes nothing that a crashed call left" in outcome.text


def test_two_processes_may_start_at_once_where_they_lock_what_they_end(judged: Callable[..., Outcome]) -> None:
    outcome = judged(leftovers.two_processes_that_start_at_once_end_the_same_work, over_files(FileBackend))

    assert outcome.state is CheckState.PASSED, outcome.text
