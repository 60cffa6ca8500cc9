"""Backends that take a record they cannot read for none, and the checks that find it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import damaged_records

from csi_multi.contract import (
    Blank,
    Device,
    NotFound,
    Strings,
    Unavailable,
    Volume,
    VolumeRequest,
    missing,
)

from .file_backend import SIZE, VOLUMES, FileBackend, over_files
from .grouped_files import Grouped


class Forgiving(FileBackend):
    """Treats a damaged record like none."""

    def _read(self, kind: str, handle: str, form: type[Any]) -> Any:
        try:
            return super()._read(kind, handle, form)
        except Unavailable as error:
            if isinstance(error.__cause__, msgspec.DecodeError):
                raise missing(kind, handle) from None
            raise


class Cleaning(FileBackend):
    """Removes at its start what is incomplete, and takes what it cannot read for that."""

    def resume(self) -> None:
        super().resume()
        for entry in (self.root / VOLUMES).iterdir():
            try:
                self._read(VOLUMES, entry.name, Volume)
            except Unavailable:
                shutil.rmtree(entry)


class Orphaning(Forgiving):
    """Deletes what its record shows."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.get_volume(handle)
        super().delete_volume(handle, secrets)


class Fresh(FileBackend):
    """Takes a volume whose state it cannot read for a new one."""

    def _device(self, link: Path) -> Device:
        try:
            return super()._device(link)
        except ValueError:
            return Device(path=link, number="0:0", proof={}, blank=Blank.ZEROED)


class EmptyCopies(FileBackend):
    """Copies nothing from a source that it cannot read."""

    def _copied(self, request: VolumeRequest, size: int, kind: str) -> Volume:
        return self._put(request, size or SIZE, lambda data: data.write_bytes(b""))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().clone_volume(request) if self._is_readable(request) else self._copied(request, 0, "")
        except NotFound:
            return self._copied(request, 0, "")

    restore_volume = clone_volume

    def _is_readable(self, request: VolumeRequest) -> bool:
        return False


class ForgivingGroups(Forgiving, Grouped):
    pass


BROKEN = [
    (
        damaged_records.a_volume_whose_record_cannot_be_read_is_not_taken_for_absent,
        over_files(Forgiving),
        "get_volume raised NotFound",
    ),
    (
        damaged_records.a_volume_whose_record_cannot_be_read_is_not_taken_for_absent,
        over_files(Cleaning),
        "it removed [",
    ),
    (
        damaged_records.a_volume_whose_record_cannot_be_read_is_not_reported_as_deleted_while_it_is_there,
        over_files(Orphaning),
        "delete_volume: raised NotFound (",
    ),
    (
        damaged_records.a_used_volume_is_not_blank_when_its_record_cannot_be_read,
        over_files(Fresh),
        "Device.blank is ZEROED",
    ),
    (
        damaged_records.a_snapshot_whose_record_cannot_be_read_is_not_taken_for_absent,
        over_files(Forgiving),
        "get_snapshot raised NotFound",
    ),
    (
        damaged_records.a_group_whose_record_cannot_be_read_is_not_taken_for_absent,
        over_files(ForgivingGroups),
        "raised NotFound",
    ),
    (
        damaged_records.a_clone_of_a_volume_whose_record_cannot_be_read_has_its_data_or_is_made_later,
        over_files(Forgiving),
        "clone_volume raised NotFound",
    ),
    (
        damaged_records.a_clone_of_a_volume_whose_record_cannot_be_read_has_its_data_or_is_made_later,
        over_files(EmptyCopies),
        "then clone_volume: the first block differs",
    ),
    (
        damaged_records.a_restore_of_a_snapshot_whose_record_cannot_be_read_has_its_data_or_is_made_later,
        over_files(EmptyCopies),
        "then restore_volume: the first block differs",
    ),
    (
        damaged_records.a_snapshot_of_a_volume_whose_record_cannot_be_read_has_its_data_or_is_made_later,
        over_files(Forgiving),
        "create_snapshot raised NotFound",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


CHECKS = sorted({check.__name__: check for check, _, _ in BROKEN}.items())


@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[name for name, _ in CHECKS])
def test_a_record_that_is_an_error_passes(judged: Any, check: Any) -> None:
    outcome = judged(check, over_files(Grouped))

    assert outcome.state is CheckState.PASSED, outcome.text
