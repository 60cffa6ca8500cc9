"""Servers that do not end what they began when they were killed, and the checks that find it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import disk_changes, waiting
from csi_multi_testing import server_kills as killing
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, server_kills
from csi_multi_testing.disk_changes import STRACE

from csi_multi.contract import (
    AttachRequest,
    Capacity,
    CapacityReport,
    CapacityRequest,
    ExpandRequest,
    Expansion,
    ModifyRequest,
    NotFound,
    Stamp,
    StorageError,
    Strings,
    Volume,
)

from .file_backend import OPEN, SIZE, VOLUMES
from .file_server import Served, served
from .whole_files import Surrounded, WholeFiles

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which(STRACE), reason="needs strace")]


class Noting(Surrounded):
    """Notes what it is about to do, and looks at no note when it starts."""

    @contextmanager
    def around(self) -> Iterator[None]:
        note = self.root / OPEN / f"note-{uuid.uuid4().hex}"
        note.touch()
        try:
            yield
        finally:
            note.unlink()

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self.around():
            super().delete_volume(handle, secrets)

    def modify_volume(self, request: ModifyRequest) -> None:
        with self.around():
            super().modify_volume(request)

    def attach(self, request: AttachRequest) -> Strings:
        with self.around():
            return super().attach(request)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        with self.around():
            return super().import_volume(name, stamp)


class NameFirst(WholeFiles):
    """Removes the record, by which a start would find it, before the data."""

    def _remove(self, kind: str, handle: str) -> None:
        entry = self._entry(kind, handle)
        with self._locked():
            if not entry.exists():
                raise NotFound(f"{handle!r} does not exist")
            rest = self.root / OPEN / f"rest-{uuid.uuid4().hex}"
            with suppress(FileNotFoundError):
                (entry / "data").rename(rest)
            shutil.rmtree(entry)
            rest.unlink(missing_ok=True)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        members = self.get_group_snapshot(handle).snapshots
        (self.root / "groups" / handle).unlink()
        for member in members:
            self._remove("snapshots", member.handle)


class SizeFirst(WholeFiles):
    """Writes the new size down before the data has it."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self._locked():
            volume = self.get_volume(request.handle)
            size = request.size.choose(granularity=4096, minimum=volume.size)
            if size > volume.size:
                self._write(self._entry(VOLUMES, volume.handle) / "record", replace(volume, size=size))
                os.truncate(self._entry(VOLUMES, volume.handle) / "data", size)
        return Expansion(size=size)


class Taking(WholeFiles):
    """A start removes every volume that it has no use for."""

    def resume(self) -> None:
        super().resume()
        for entry in (self.root / VOLUMES).iterdir():
            if not (entry / "native").exists():
                shutil.rmtree(entry)


class Hasty(Served):
    """Takes a connection that breaks for an answer."""

    def lost(self, error: Exception) -> StorageError:
        return NotFound("the server does not know it")


class Counted(Served, Capacity):
    """Reports less after each start: what was interrupted counts for ever."""

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        starts = Path(self.socket).with_name("starts")
        return CapacityReport(available=SIZE * (1000 - (len(starts.read_bytes()) if starts.exists() else 0)))


class CountingStarts(WholeFiles):
    def resume(self) -> None:
        super().resume()
        with (self.root / "starts").open("ab") as file:
            file.write(b"1")


NOTED = served(Noting)
LEFT = "open/note-"
BROKEN = [
    (server_kills.a_creation_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (
        server_kills.a_creation_survives_a_kill_of_the_server_at_any_change,
        served(client=Hasty),
        "nobody knows what was",
    ),
    (
        server_kills.a_creation_survives_a_kill_of_the_server_at_any_change,
        served(Taking),
        "after the server was killed: get_volume raised NotFound",
    ),
    (
        server_kills.a_modification_survives_a_kill_of_the_server_at_any_change,
        served(CountingStarts, Counted),
        "bytes less than before, although all was deleted again",
    ),
    (server_kills.a_restore_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (server_kills.a_clone_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (server_kills.a_snapshot_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (server_kills.a_group_snapshot_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (
        server_kills.a_volume_deletion_survives_a_kill_of_the_server_at_any_change,
        served(NameFirst),
        "remaining: open/rest",
    ),
    (
        server_kills.a_snapshot_deletion_survives_a_kill_of_the_server_at_any_change,
        served(NameFirst),
        "remaining: open/rest",
    ),
    (server_kills.a_group_deletion_survives_a_kill_of_the_server_at_any_change, served(NameFirst), "remaining: "),
    (
        server_kills.an_expansion_survives_a_kill_of_the_server_at_any_change,
        served(SizeFirst),
        "the last block of the expanded volume has 0 bytes",
    ),
    (server_kills.a_modification_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (server_kills.an_attachment_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
    (server_kills.an_import_survives_a_kill_of_the_server_at_any_change, NOTED, LEFT),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (waiting, killing):
        monkeypatch.setattr(module, "BACK_SECONDS", 0.5)
    monkeypatch.setattr(killing, "OTHERS_SECONDS", 0.2)
    monkeypatch.setattr(killing, "MOST", 3)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "server_kills"])
def test_a_server_that_ends_what_was_interrupted_passes(judged: Callable[..., Any], name: str) -> None:
    outcome = judged(CHECKS[name].body, served())

    assert outcome.state is CheckState.PASSED, outcome.text


def test_without_strace_the_check_is_skipped(judged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_changes, "STRACE", "no-such-strace")

    outcome = judged(server_kills.a_creation_survives_a_kill_of_the_server_at_any_change, served())

    assert (outcome.state, "strace is not installed" in outcome.text) == (CheckState.SKIPPED, True)
