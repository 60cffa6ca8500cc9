"""Backends that leave something in their process, and the checks that find it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import process_resources
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import leaks
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    Strings,
    Unavailable,
    Volume,
    VolumeRequest,
)

UNDO = ExitStack()


@pytest.fixture(autouse=True)
def undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process_resources, "WAIT", 0.2)
    yield
    UNDO.close()


def open_forever() -> None:
    UNDO.callback(os.close, os.open("/dev/null", os.O_RDONLY))


class KeepsFiles(MemoryBackend):
    """Opens something for each snapshot and does not close it."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        open_forever()
        return super().create_snapshot(request)


class KeepsFilesOfFailures(MemoryBackend):
    """Closes what it opens, unless a call fails in between."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except Unavailable:
            open_forever()
            raise


class KeepsThreads(MemoryBackend):
    """Each instance has a thread that looks after it, for ever."""

    def resume(self) -> None:
        over = threading.Event()
        UNDO.callback(over.set)
        threading.Thread(target=over.wait, name="caretaker", daemon=True).start()


class KeepsProcesses(MemoryBackend):
    """Starts a helper for each volume, and does not end it with the volume."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(handle, secrets)
        helper = subprocess.Popen(["sleep", "60"])
        UNDO.callback(helper.wait)
        UNDO.callback(helper.kill)


class EndsLater(MemoryBackend):
    """Has a thread that needs a moment to end."""

    def close(self) -> None:
        threading.Timer(0.05, lambda: None).start()


class KeepsTemporaryFiles(MemoryBackend):
    """Hands a secret to a command in a file, and removes it if all went well."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            made = super().create_volume(request)
        Path(file.name).unlink()
        return made


class KeepsFilesOfRefusals(MemoryBackend):
    """Opens a volume, and closes it unless it is refused."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        try:
            return super().expand_volume(request)
        except (ResourceExhausted, OutOfRange, NotFound):
            open_forever()
            raise


BROKEN = [
    (leaks.an_instance_that_was_closed_leaves_nothing_in_its_process, KeepsFiles, "files more: /dev/null"),
    (leaks.an_instance_that_was_closed_leaves_nothing_in_its_process, KeepsThreads, "2 threads more: caretaker"),
    (leaks.an_instance_that_was_closed_leaves_nothing_in_its_process, KeepsProcesses, "processes more: sleep"),
    (leaks.calls_that_fail_leave_nothing_in_their_process, KeepsFilesOfFailures, "files more: /dev/null"),
    (
        leaks.nothing_is_left_among_the_temporary_files_of_the_machine,
        KeepsTemporaryFiles,
        "temporary files of operations that ended: tmp",
    ),
    (
        leaks.requests_that_are_refused_leave_nothing_in_their_process,
        KeepsFilesOfRefusals,
        "files more: /dev/null",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


class FillsAPool(MemoryBackend):
    """Keeps up to four connections, and opens another one when one fails. Correct."""

    pool = 0

    def create_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().create_volume(request)
        except Unavailable:
            if self.pool < 4:
                self.pool += 1
                open_forever()
            raise


def test_a_pool_may_be_filled_by_failures_up_to_its_bound(judged: Callable[..., Outcome]) -> None:
    outcome = judged(leaks.calls_that_fail_leave_nothing_in_their_process, FillsAPool)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_child_is_found_where_the_kernel_lists_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    read_text = Path.read_text

    def without_children(self: Path, *more: Any, **options: Any) -> str:
        if self.name == "children":
            raise FileNotFoundError(self)
        return read_text(self, *more, **options)

    monkeypatch.setattr(Path, "read_text", without_children)
    before = process_resources.measure()
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert process_resources.added(before, allowed=0) == {"processes": ["sleep"]}
    finally:
        child.kill()
        child.wait()


def test_a_thread_may_need_a_moment_to_end(judged: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_resources, "WAIT", 30)

    outcome = judged(leaks.an_instance_that_was_closed_leaves_nothing_in_its_process, EndsLater)

    assert outcome.state is CheckState.PASSED, outcome.text
