"""Backends that go wrong when two processes make one call each, and the checks that find it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from csi_multi_testing.checks import interleavings
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base

from csi_multi.contract import Blank, InUse, Strings

from .file_backend import OPEN, VOLUMES, FileBackend, failures, over_files


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class TakesItForLeft(MemoryBackend):
    """Removes at its start what belongs to no volume or snapshot yet, also of a process that is at work."""

    def resume(self) -> None:
        for key in list(self.storage.data):
            if key not in self.storage.volumes and key[1:] not in self.storage.snapshots:
                del self.storage.data[key]


class EndsTheDeletion(MemoryBackend):
    """Marks a volume, then removes it. At its start it ends such a deletion."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        self.storage.put(self.storage.iops, f"deleting {handle}", 1)
        self.storage.drop(self.storage.data, handle)
        del self.storage.volumes[handle]
        self.storage.iops.pop(f"deleting {handle}", None)

    def resume(self) -> None:
        for mark in list(self.storage.iops):
            if mark.startswith("deleting "):
                self.storage.volumes.pop(mark.removeprefix("deleting "), None)
                self.storage.data.pop(mark.removeprefix("deleting "), None)


class LooksBeforeItLocks(FileBackend):
    """Whether a volume is open is asked before the lock is taken."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if handle in os.listdir(self.root / OPEN):
            raise InUse(f"volume {handle!r} is open")
        self._remove(VOLUMES, handle)

    def refuse_open(self, handle: str) -> None:
        """Do nothing: it was asked."""


class OneDraft(FileBackend):
    """Makes every volume and snapshot in one directory, without a lock."""

    def _publish(self, kind: str, made: Any, fill: Any) -> None:
        draft = self.root / kind / ".draft"
        with failures():
            self._clear(draft)
            draft.mkdir()
            fill(draft / "data")
            self._write(draft / "record", made)
            draft.rename(self._entry(kind, made.handle))


class WritesTheOldRecord(FileBackend):
    """Reads a volume, then takes the lock, and writes the volume with its note."""

    def _note(self, handle: str, blank: Blank) -> None:
        volume = self.get_volume(handle)
        super()._note(handle, blank)
        with self._locked():
            self._write(self._entry(VOLUMES, handle) / "record", volume)


BROKEN = [
    (
        interleavings.a_process_that_starts_removes_nothing_that_another_one_creates,
        TakesItForLeft,
        "(put) while another process made resume: the first block differs",
    ),
    (
        interleavings.a_deletion_ends_while_another_process_starts,
        EndsTheDeletion,
        "delete_volume: raised KeyError",
    ),
    (
        interleavings.two_processes_create_two_volumes,
        over_files(OneDraft),
        "the first one raised Unavailable",
    ),
    (
        interleavings.a_volume_is_not_deleted_that_another_process_opens_at_any_call,
        over_files(LooksBeforeItLocks),
        "while another process made open_device: both succeeded",
    ),
    (
        interleavings.an_expansion_and_a_note_of_another_process_undo_nothing,
        over_files(WritesTheOldRecord),
        "while another process made formatting, then the size of get_volume: found 65536",
    ),
]
CHECKS = list(dict.fromkeys(check for check, _, _ in BROKEN))


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("check", CHECKS)
def test_a_backend_over_files_passes(judged: Any, check: Any) -> None:
    outcome = judged(check, over_files(FileBackend))

    assert outcome.state.value == "passed", outcome.text
