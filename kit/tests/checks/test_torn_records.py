"""Backends that write a record in its place, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, torn_records
from csi_multi_testing.memory import MutableParameters
from csi_multi_testing.operations import base
from csi_multi_testing.storage import Storage

from csi_multi.contract import AlreadyExists, Blank, ModifyRequest, Snapshot, Volume
from csi_multi.contract import backend as b

from .file_backend import VOLUMES, FileBackend, over_files, storage


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class Modified(FileBackend, b.Modify):
    """Keeps the parameters in the record. Correct."""

    MutableParameters = MutableParameters

    def modify_volume(self, request: ModifyRequest) -> None:
        with self._locked():
            self._write(self._entry(VOLUMES, request.handle) / "record", self.get_volume(request.handle))


class InPlace(Modified):
    """Writes a record, or a note, where it is read."""

    def _write(self, file: Path, record: Volume | Snapshot) -> None:
        file.write_bytes(msgspec.json.encode(record))

    def _note(self, handle: str, blank: Blank) -> None:
        (self._entry(VOLUMES, handle) / "state").write_text(blank.value)


class MadeInPlace(FileBackend):
    """Makes a volume where it is read; the record says that it is there."""

    def _publish(self, kind: str, made: Volume | Snapshot, fill: Callable[[Path], object]) -> None:
        entry = self._entry(kind, made.handle)
        with self._locked():
            if (entry / "record").exists():
                raise AlreadyExists(f"{made.handle!r} exists")
            self._clear(entry)
            entry.mkdir()
            fill(entry / "data")
            (entry / "record").write_bytes(msgspec.json.encode(made))


def modified(kind: type[Modified]) -> Callable[[], Storage]:
    return lambda: storage(kind, mutable={"iops": "100"}, other_mutable={"iops": "200"})


BROKEN = [
    (
        torn_records.a_creation_completes_after_a_crash_that_left_a_file_empty,
        over_files(MadeInPlace),
        "when it had emptied a file to write it anew, at call",
    ),
    (
        torn_records.an_expansion_completes_after_a_crash_that_left_a_file_empty,
        over_files(InPlace),
        "cannot be read",
    ),
    (
        torn_records.a_modification_completes_after_a_crash_that_left_a_file_empty,
        modified(InPlace),
        "cannot be read",
    ),
    (
        torn_records.the_format_notes_are_old_or_new_after_a_crash_that_left_a_file_empty,
        over_files(InPlace),
        "'' is not a valid Blank",
    ),
]


@pytest.mark.root
@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.root
@pytest.mark.parametrize(
    "one", [one for one in CHECKS.values() if one.group == "torn_records"], ids=lambda one: one.name
)
def test_a_record_that_is_renamed_into_its_place_passes(judged: Any, one: Any) -> None:
    outcome = judged(one.body, modified(Modified))

    assert outcome.state is CheckState.PASSED, outcome.text
