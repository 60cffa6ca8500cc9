"""Backends whose sources stay busy after a copy that crashed, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import CHECKS, crashed_copies
from csi_multi_testing.operations import base

from csi_multi.contract import Busy, Snapshot, SnapshotRequest, Volume, VolumeRequest

from .file_backend import SNAPSHOTS, VOLUMES, FileBackend, failures, over_files


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class Marking(FileBackend):
    """Marks the source of a copy; the mark of a process that died belongs to the same request only."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        with self.marked(VOLUMES, request.source.handle, request.name):
            return super().clone_volume(request)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        with self.marked(SNAPSHOTS, request.source.handle, request.name):
            return super().restore_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.marked(VOLUMES, request.source, request.name):
            return super().create_snapshot(request)

    @contextmanager
    def marked(self, kind: str, handle: str, name: str) -> Iterator[None]:
        self._read(kind, handle, Volume if kind == VOLUMES else Snapshot)
        mark = self._entry(kind, handle) / "mark"
        with failures():
            if mark.exists() and mark.read_text() != name:
                raise Busy(f"{handle!r} is copied")
            mark.write_text(name)
        try:
            yield
        finally:
            with failures():
                mark.unlink(missing_ok=True)


BROKEN = [
    (
        crashed_copies.the_source_of_a_crashed_clone_can_be_used,
        over_files(Marking),
        "then a start, then another copy of the source: raised Busy",
    ),
    (
        crashed_copies.a_snapshot_whose_restore_crashed_can_be_used,
        over_files(Marking),
        "then a start, then another copy of the source: raised Busy",
    ),
    (
        crashed_copies.a_volume_whose_snapshot_crashed_can_be_used,
        over_files(Marking),
        "then a start, then another copy of the source: raised Busy",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "crashed_copies"])
def test_a_backend_that_marks_nothing_passes(judged: Callable[..., Outcome], name: str) -> None:
    outcome = judged(CHECKS[name].body, over_files(FileBackend))

    assert outcome.state is CheckState.PASSED, outcome.text
