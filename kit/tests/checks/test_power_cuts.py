"""Backends that lose what they said was done when the power fails, and the checks that find it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_testing import Disk
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import CHECKS, modify, power_cuts
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import (
    NO_SECRETS,
    AlreadyExists,
    Device,
    ExpandRequest,
    Expansion,
    ModifyRequest,
    OpenRequest,
    Snapshot,
    Strings,
    Volume,
)

from . import file_backend
from .file_backend import OPEN, VOLUMES, FileBackend
from .limited_files import Limited, fsync

pytestmark = pytest.mark.root

DISKS = ExitStack()


@pytest.fixture(autouse=True)
def unplugged() -> Iterator[None]:
    yield
    DISKS.close()


class Synced(Limited):
    """Everything that a call has done is on the disk before it returns. Correct."""

    def sync(self, path: Path) -> None:
        fsync(path)


class Unsynced(Synced):
    """Renames its metadata into place, and leaves the rest to the kernel."""

    def sync(self, path: Path) -> None:
        """Do nothing."""


class Contents(Synced):
    """Syncs files, and no directory that has their names."""

    def sync(self, path: Path) -> None:
        if path.is_file():
            super().sync(path)


class Resurrecting(Synced):
    """A rename that is a removal needs no sync."""

    def sync(self, path: Path) -> None:
        if path.name != VOLUMES or not [one for one in path.iterdir() if one.name.startswith(".")]:
            super().sync(path)


class Labels(Synced):
    """Syncs its own records; the data is the user's."""

    def sync(self, path: Path) -> None:
        if path.name != "data":
            super().sync(path)


class Cached(Synced):
    """Shows a copy of the data, which is written back when the device is closed."""

    def open_device(self, request: OpenRequest) -> Device:
        link = self.root / OPEN / request.handle
        if not os.path.lexists(link):
            copy = Path(tempfile.mkdtemp(), "data")
            copy.write_bytes((self._entry(VOLUMES, request.handle) / "data").read_bytes())
            link.symlink_to(copy)
        return self._device(link)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        with suppress(FileNotFoundError):
            data = (self.root / OPEN / handle).read_bytes()
            (self._entry(VOLUMES, handle) / "data").write_bytes(data)
        super().close_device(handle)


class Rewriting(Synced):
    """Writes the record of a modified volume again, and syncs its name only."""

    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        record = self._entry(VOLUMES, request.handle) / "record"
        draft = record.with_name(".record")
        draft.write_bytes(record.read_bytes())
        draft.rename(record)
        self.sync(record.parent)


class Late(Synced):
    """Syncs the directory first, and then what is in it."""

    def _publish(self, kind: str, made: Volume | Snapshot, fill: Callable[[Path], object]) -> None:
        draft, final = self.root / kind / f".{made.handle}", self._entry(kind, made.handle)
        with self._locked():
            if made.handle in os.listdir(self.root / kind):
                raise AlreadyExists(f"{made.handle!r} exists")
            self._clear(draft)
            draft.mkdir()
            fill(draft / "data")
            (draft / "record").write_bytes(msgspec.json.encode(made))
            draft.rename(final)
            self.sync(final.parent)
            self.sync(final / "record")
            self.sync(final / "data")


class Relying(Synced):
    """Leaves a sync to a later one of another file, which is enough where each writes the whole journal."""

    growing = False

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.growing = True
        try:
            return super().expand_volume(request)
        finally:
            self.growing = False

    def sync(self, path: Path) -> None:
        if not (self.growing and path.name == "data"):
            super().sync(path)


def first_line(file: Path) -> str:
    """Return "" for a file that does not exist."""
    return file.read_text() if file.exists() else ""


def on_a_disk(kind: type[FileBackend], filesystem: str = "ext4", size: int = 64 * MIB) -> Callable[[], Storage]:
    """Return a storage whose directory is on a disk of its own."""

    def storage() -> Storage:
        directory = DISKS.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kit-disk-"))
        disk = DISKS.enter_context(Disk(Path(directory), size=size, kind=filesystem))
        made = file_backend.storage_on(kind, disk.path)
        fsync(disk.path)

        def write(handle: str, offset: int, data: bytes) -> None:
            with (disk.path / VOLUMES / handle / "data").open("r+b") as file:
                file.seek(offset)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        return replace(
            made,
            write=write,
            other_mutable={"iops": "200"},
            effect=lambda handle: first_line(disk.path / VOLUMES / handle / "iops"),
            power_cut=disk.power_cut,
        )

    return storage


BROKEN = [
    (power_cuts.what_was_created_survives_a_power_cut, on_a_disk(Unsynced), "create_volume succeeded, then the power"),
    (power_cuts.what_was_created_survives_a_power_cut, on_a_disk(Contents), "create_volume succeeded, then the power"),
    (power_cuts.what_was_created_survives_a_power_cut, on_a_disk(Labels), "differs from what was written"),
    (
        power_cuts.what_was_deleted_stays_deleted_after_a_power_cut,
        on_a_disk(Resurrecting),
        "after the deletion: found",
    ),
    (power_cuts.an_expansion_survives_a_power_cut, on_a_disk(Contents), "the size of get_volume"),
    (
        power_cuts.an_expansion_survives_a_power_cut,
        on_a_disk(Relying, "btrfs", 128 * MIB),
        "the last block of the expanded volume has 0 bytes",
    ),
    (
        power_cuts.a_modification_survives_a_power_cut,
        on_a_disk(Contents),
        "after modify_volume succeeded, then the power failed: found '', the contract requires '200'",
    ),
    (
        power_cuts.the_record_of_a_modified_volume_survives_a_power_cut,
        on_a_disk(Rewriting),
        "get_volume raised Unavailable: the record of",
    ),
    (power_cuts.the_notes_about_formatting_survive_a_power_cut, on_a_disk(Contents), "Device.blank: found"),
    (power_cuts.data_that_was_synced_to_a_device_survives_a_power_cut, on_a_disk(Cached), "it is lost"),
    (
        power_cuts.a_creation_completes_once_after_a_power_cut_at_any_call,
        on_a_disk(Late),
        "cannot be read: Input data was truncated",
    ),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modify, "EFFECT_SECONDS", 0.2)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if one.group == "power_cuts"])
def test_a_backend_that_syncs_in_time_passes(judged: Callable[..., Any], name: str) -> None:
    outcome = judged(CHECKS[name].body, on_a_disk(Synced))

    assert outcome.state is CheckState.PASSED, outcome.text
