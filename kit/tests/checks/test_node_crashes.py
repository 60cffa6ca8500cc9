"""Backends whose operations on a node do not survive a crash, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import CHECKS, node_crashes
from csi_multi_testing.operations import base

from csi_multi.contract import NO_SECRETS, AttachRequest, Blank, Strings

from .file_backend import (
    VOLUMES,
    FileBackend,
    OpensAndRegisters,
    RefreshesByRemoving,
    failures,
    over_files,
    storage,
)
from .loop_devices import Looped, looped, remove_devices


class NotesInTwoSteps(FileBackend):
    """Writes notes that say something else for a moment."""

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._note(handle, Blank.NEVER)
        self._note(handle, Blank.INTERRUPTED)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        (self._entry(VOLUMES, handle) / "state").unlink(missing_ok=True)
        self._note(handle, Blank.NEVER)


class CleansUpOnce(FileBackend):
    """Collects what is to be cleaned up in a directory that must not be there yet."""

    def resume(self) -> None:
        with failures():
            (self.root / "trash").mkdir()
            super().resume()
            (self.root / "trash").rmdir()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


BROKEN = [
    (node_crashes.opening_a_device_completes_after_a_crash_at_any_call, over_files(OpensAndRegisters), "remaining"),
    (
        node_crashes.a_device_can_be_closed_after_a_crash_at_any_call_of_opening_it,
        over_files(OpensAndRegisters),
        "remaining",
    ),
    (node_crashes.closing_a_device_completes_after_a_crash_at_any_call, over_files(OpensAndRegisters), "remaining"),
    (
        node_crashes.refreshing_a_device_completes_after_a_crash_at_any_call,
        over_files(RefreshesByRemoving),
        "raised Unavailable",
    ),
    (
        node_crashes.the_formatting_note_is_old_or_new_after_a_crash_at_any_call,
        over_files(NotesInTwoSteps),
        "Blank.NEVER",
    ),
    (
        node_crashes.the_formatted_note_is_old_or_new_after_a_crash_at_any_call,
        over_files(NotesInTwoSteps),
        "Blank.ZEROED",
    ),
    (
        node_crashes.a_crash_at_any_call_of_resume_is_repaired_by_the_next_start,
        over_files(CleansUpOnce),
        "resume raised",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", list(CHECKS))
def test_a_backend_over_files_passes(judged: Any, name: str) -> None:
    devices = CHECKS[name].group in ("node_crashes", "faults", "failed_reads")  # links to files do for these
    outcome = judged(CHECKS[name].body, lambda: storage(devices=devices))

    assert outcome.state is not CheckState.FAILED, outcome.text


class Wordless(Looped):
    """Attaches, and has nothing to tell the node."""

    def attach(self, request: AttachRequest) -> Strings:
        super().attach(request)
        return {}


@pytest.mark.root
def test_a_volume_that_is_attached_without_a_context_is_detached_before_it_is_deleted(
    judged: Callable[..., Outcome],
) -> None:
    outcome = judged(node_crashes.closing_a_device_completes_after_a_crash_at_any_call, looped(Wordless))
    remove_devices()

    assert outcome.state is CheckState.PASSED, outcome.text
