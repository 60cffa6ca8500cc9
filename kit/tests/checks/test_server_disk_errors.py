"""Servers that leave half of what they could not finish, and the checks that find it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import server_kills as killing
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, server_disk_errors
from csi_multi_testing.disk_changes import STRACE

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    InvalidArgument,
    ModifyRequest,
    ResourceExhausted,
    Snapshot,
    Unavailable,
    Volume,
)

from .file_backend import OPEN, VOLUMES, failures
from .file_server import served
from .limited_files import fsync
from .whole_files import Surrounded, WholeFiles

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which(STRACE), reason="needs strace")]


class Leaving(Surrounded):
    """Removes what it needs meanwhile where it succeeds."""

    @contextmanager
    def around(self) -> Iterator[None]:
        meanwhile = self.root / OPEN / f"meanwhile-{uuid.uuid4().hex}"
        with failures():
            meanwhile.mkdir()
        yield
        meanwhile.rmdir()


class GrownAlready(WholeFiles):
    """Says that there is no space when the record has the new size already."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self._locked():
            volume = self.get_volume(request.handle)
            size = request.size.choose(granularity=4096, minimum=volume.size)
            if size > volume.size:
                self._write(self._entry(VOLUMES, volume.handle) / "record", replace(volume, size=size))
            os.truncate(self._entry(VOLUMES, volume.handle) / "data", size)
        return Expansion(size=size)


class UndoesWhatIsThere(WholeFiles):
    """Removes the data when the last sync fails, and the volume has its name already."""

    def sync(self, path: Path) -> None:
        fsync(path)

    def _publish(self, kind: str, made: Volume | Snapshot, fill: Callable[[Path], object]) -> None:
        try:
            super()._publish(kind, made, fill)
        except Unavailable:
            (self._entry(kind, made.handle) / "data").unlink(missing_ok=True)
            raise


class Blaming(WholeFiles):
    """Takes a lack of space for wrong parameters."""

    def modify_volume(self, request: ModifyRequest) -> None:
        try:
            super().modify_volume(request)
        except ResourceExhausted as error:
            raise InvalidArgument(str(error)) from error


FINAL = "which is final, but something was made or changed"
BROKEN = [
    (
        server_disk_errors.a_snapshot_and_its_restore_are_undone_or_completed_where_the_disk_of_the_server_fails,
        served(UndoesWhatIsThere),
        "/data",
    ),
    (
        server_disk_errors.a_creation_is_undone_or_completed_where_the_disk_of_the_server_fails,
        served(Leaving),
        FINAL,
    ),
    (
        server_disk_errors.a_snapshot_and_its_restore_are_undone_or_completed_where_the_disk_of_the_server_fails,
        served(Leaving),
        FINAL,
    ),
    (server_disk_errors.a_clone_is_undone_or_completed_where_the_disk_of_the_server_fails, served(Leaving), FINAL),
    (
        server_disk_errors.a_group_snapshot_is_undone_or_completed_where_the_disk_of_the_server_fails,
        served(Leaving),
        FINAL,
    ),
    (
        server_disk_errors.an_expansion_is_undone_or_completed_where_the_disk_of_the_server_fails,
        served(GrownAlready),
        FINAL,
    ),
    (
        server_disk_errors.a_modification_is_undone_or_completed_where_the_disk_of_the_server_fails,
        served(Blaming),
        "raised InvalidArgument",
    ),
]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_disk_errors, "MOST", 8)
    monkeypatch.setattr(killing, "OTHERS_SECONDS", 0.2)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "server_disk_errors"])
def test_a_server_that_undoes_what_has_no_space_passes(judged: Callable[..., Any], name: str) -> None:
    outcome = judged(CHECKS[name].body, served())

    assert outcome.state is CheckState.PASSED, outcome.text
