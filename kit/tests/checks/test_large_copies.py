"""Backends that copy a part of much data, and the checks that find it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import large_copies
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.short_transfers import short_transfers
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import Snapshot, SnapshotRequest, Volume, VolumeRequest

from .file_backend import SNAPSHOTS, VOLUMES, FileBackend, over_files


def in_one_call(source: Path, copy: Path) -> None:
    """Copy with one system call, and ignore how much it copied."""
    with source.open("rb") as reading, copy.open("wb") as writing:
        os.copy_file_range(reading.fileno(), writing.fileno(), os.fstat(reading.fileno()).st_size)


class Trusting(FileBackend):
    """Takes one call for a whole copy."""

    def _copied(self, request: VolumeRequest, size: int, kind: str) -> Volume:
        assert request.source
        source = self._entry(kind, request.source.handle) / "data"
        return self._put(request, size, lambda data: in_one_call(source, data))


class Careful(FileBackend):
    """Goes on until all is copied; its snapshots by the standard library."""

    def _copied(self, request: VolumeRequest, size: int, kind: str) -> Volume:
        assert kind in (SNAPSHOTS, VOLUMES)
        assert request.source
        source = self._entry(kind, request.source.handle) / "data"

        def copy(data: Path) -> None:
            with source.open("rb") as reading, data.open("wb") as writing:
                while os.copy_file_range(reading.fileno(), writing.fileno(), size):
                    pass

        return self._put(request, size, copy)


class Chunked(MemoryBackend):
    """Copies the first 64 MiB of each source."""

    most = 64 * MIB

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        if request.source:
            self.keep(made.handle)
        return made

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        cut = super().create_snapshot(request)
        self.keep(f"@{cut.handle}")
        return cut

    def keep(self, key: str) -> None:
        rows = self.storage.data.get(key, {})
        self.storage.data[key] = {at: data for at, data in rows.items() if at < self.most or at >= 4 << 30}


class Capped(Chunked):
    """Copies what one system call copies, and what is behind 4 GiB."""

    most = (2 << 30) - 4096


class Filling(Chunked):
    """Repeats its data where the source has nothing."""

    def keep(self, key: str) -> None:
        if rows := self.storage.data.get(key):
            rows[(4 << 30) + 4096] = rows[0]


BROKEN = [
    (
        large_copies.a_clone_is_complete_where_each_system_call_copies_a_part,
        over_files(Trusting),
        "clone_volume, while each copy_file_range was of 4096 bytes at most: the copy has zeros at 4096",
    ),
    (
        large_copies.a_restored_volume_is_complete_where_each_system_call_copies_a_part,
        over_files(Trusting),
        "the copy has zeros at 4096",
    ),
    (large_copies.a_large_clone_holds_all_data_of_its_source, Chunked, "the copy has zeros at 67108864"),
    (large_copies.a_large_clone_holds_all_data_of_its_source, Capped, f"the copy has zeros at {(2 << 30) - 4096}"),
    (large_copies.a_large_clone_holds_all_data_of_its_source, Filling, "the copy has data at 4294971392"),
    (large_copies.a_large_restored_volume_holds_all_data_of_its_snapshot, Chunked, "the copy has zeros at 67108864"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("kind", [FileBackend, Careful])
def test_a_copy_that_goes_on_until_all_is_copied_passes(judged: Callable[..., Outcome], kind: Any) -> None:
    for check in (
        large_copies.a_clone_is_complete_where_each_system_call_copies_a_part,
        large_copies.a_restored_volume_is_complete_where_each_system_call_copies_a_part,
    ):
        outcome = judged(check, over_files(kind))

        assert outcome.state is CheckState.PASSED, outcome.text


def test_a_copy_without_system_calls_of_the_process_is_skipped(judged: Callable[..., Outcome]) -> None:
    outcome = judged(large_copies.a_clone_is_complete_where_each_system_call_copies_a_part, MemoryBackend)

    assert outcome.state is CheckState.SKIPPED, outcome.text
    assert "the copy calls none of os.copy_file_range, os.sendfile" in outcome.text


@pytest.mark.parametrize("large", [2 * MIB, 300 * MIB, (2 << 30) + 4096])
def test_a_storage_with_less_space_names_a_smaller_size(judged: Callable[..., Outcome], large: int) -> None:
    def storage() -> Storage:
        return memory.storage(large=large)

    outcome = judged(large_copies.a_large_clone_holds_all_data_of_its_source, storage)

    assert outcome.state is CheckState.PASSED, outcome.text


def test_short_transfers_lose_nothing_for_who_goes_on(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(os.urandom(100_000))
    descriptor = os.open(copy, os.O_RDWR | os.O_CREAT)

    with short_transfers(4096) as shortened:
        shutil.copyfile(source, tmp_path / "by the library")
        assert os.write(descriptor, memoryview(source.read_bytes())) == 4096
        assert os.pwrite(descriptor, b"x" * 5000, 4096) == 4096
        assert len(os.pread(descriptor, 5000, 0)) == 4096
        assert os.sendfile(descriptor, descriptor, offset=0, count=10) == 10
    os.close(descriptor)

    assert (tmp_path / "by the library").read_bytes() == source.read_bytes()
    assert shortened == {"sendfile", "write", "pwrite", "pread"}
    assert os.pread.__module__ == "posix"
