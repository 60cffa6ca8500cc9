"""Backends that do not survive what follows a crash, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_testing.checks import after_crash
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base

from csi_multi.contract import (
    Blank,
    Snapshot,
    Strings,
    Volume,
    VolumeRequest,
    leaf,
    missing,
)

from .file_backend import VOLUMES, FileBackend, over_files
from .late_name import NameLater


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class LeavesTheHalfMade(MemoryBackend):
    """Makes an empty volume over the bytes that a dead process had copied under its name."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        left = self.storage.data.get(leaf(request.name), {})
        made = super().create_volume(request)
        if left:
            self.storage.data[made.handle] = left
        return made


class HidesWhatItDeletes(MemoryBackend):
    """Marks a volume as deleted first, and takes the mark of a dead process for the end."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        volume = self.get_volume(handle)
        self.storage.put(self.storage.volumes, handle, replace(volume, stamp=replace(volume.stamp, name="")))
        super().delete_volume(handle, secrets)

    def get_volume(self, handle: str) -> Volume:
        found = super().get_volume(handle)
        if not found.stamp.name:
            raise missing("volume", handle)
        return found


class TakesSnapshotsAlong(MemoryBackend):
    """Deletes the snapshots of a volume, and notices at the end that they stay."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        blocks = {key: rows for key, rows in self.storage.data.items() if key != handle}
        for key in blocks:
            self.storage.drop(self.storage.data, key)
        super().delete_volume(handle, secrets)
        for key, rows in blocks.items():
            self.storage.put(self.storage.data, key, rows)


class NumbersItsTries(MemoryBackend):
    """Keeps a draft per try, under the number of the try, and cleans up the last one only."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        drafts = [key for key in self.storage.data if key.startswith(f"{request.name}.")]
        number = len(drafts) + 1
        self.storage.put(self.storage.data, f"{request.name}.{number}", {})
        made = super().create_volume(request)
        for last in (number, number - 1):
            self.storage.drop(self.storage.data, f"{request.name}.{last}")
        return made


class DraftsElsewhere(FileBackend):
    """Writes what is to be renamed beside the volume, and leaves it when nobody renames it."""

    def _write(self, file: Path, record: Volume | Snapshot) -> None:
        draft = self.root / VOLUMES / f"draft-{record.handle}"
        draft.write_bytes(msgspec.json.encode(record))
        draft.rename(file)

    def _note(self, handle: str, blank: Blank) -> None:
        self.get_volume(handle)
        draft = self.root / VOLUMES / f"draft-{handle}"
        draft.write_text(blank.value)
        draft.rename(self._entry(VOLUMES, handle) / "state")


BROKEN = [
    (after_crash.a_creation_completes_once_after_two_crashes_at_any_call, NumbersItsTries, "2 new resources"),
    (
        after_crash.another_request_can_follow_a_creation_that_crashed,
        LeavesTheHalfMade,
        "has the data of an earlier volume",
    ),
    (after_crash.another_request_can_follow_a_creation_that_crashed, NameLater, "remaining: "),
    (
        after_crash.a_name_is_free_after_a_crashed_deletion_was_repeated,
        HidesWhatItDeletes,
        "is being created or deleted",
    ),
    (
        after_crash.snapshots_survive_a_crashed_deletion_of_their_source,
        TakesSnapshotsAlong,
        "the first block differs",
    ),
    (
        after_crash.nothing_is_left_of_a_volume_that_is_deleted_after_a_crashed_expansion,
        over_files(DraftsElsewhere),
        "remaining: volumes/draft-",
    ),
    pytest.param(
        *(
            after_crash.nothing_is_left_of_a_volume_that_is_deleted_after_a_crashed_format_note,
            over_files(DraftsElsewhere),
            "remaining: volumes/draft-",
        ),
        marks=pytest.mark.root,
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
