"""Backends that take a record they cannot read for none, and the check that finds it."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec
import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import damaged_records

from csi_multi.contract import Unavailable, Volume, missing

from .file_backend import VOLUMES, FileBackend, over_files


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
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_record_that_is_an_error_passes(judged: Any) -> None:
    outcome = judged(
        damaged_records.a_volume_whose_record_cannot_be_read_is_not_taken_for_absent, over_files(FileBackend)
    )

    assert outcome.state is CheckState.PASSED, outcome.text
