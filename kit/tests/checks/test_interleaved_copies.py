"""Backends whose copies go wrong beside another process, and the checks that find it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import interleaved_copies
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base
from csi_multi_testing.storage import Storage

from csi_multi.contract import Snapshot, SnapshotRequest, Volume, VolumeRequest, missing
from csi_multi.host import loopfile

from .loop_devices import Looped, looped, remove_devices

FREEZE, THAW = 0xC0045877, 0xC0045878


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class CopiesInTwoSteps(MemoryBackend):
    """Copies the first block, then the others, and keeps nobody from writing between."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        made = super().clone_volume(request)
        self._copy(request.source.handle, made.handle)
        return made

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        self._copy(request.source, f"@{made.handle}")
        return made

    def _copy(self, source: str, key: str) -> None:
        first = {0: self.storage.data[source][0]}
        self.storage.total_size()
        self.storage.data[key] = self.storage.data[source] | first


class RestoresTheOrigin(MemoryBackend):
    """Takes the data of the volume of which the snapshot is, as long as there is one."""

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        made, origin = super().restore_volume(request), self.get_snapshot(request.source.handle).source
        if origin in self.storage.data:
            self.storage.data[made.handle] = dict(self.storage.data[origin])
        return made


class LooksBeforeItLocks(MemoryBackend):
    """The source may be deleted between the look at it and the copy."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        return self._put(request, default=self.get_volume(request.source.handle).size)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        source = self.get_volume(request.source)
        with self.storage.lock:
            gone = request.source not in self.storage.volumes
            if gone:
                self.storage.volumes[request.source] = source
            made = super().create_snapshot(request)
            if gone:
                del self.storage.volumes[request.source]
        return made


class OneDraft(MemoryBackend):
    """Copies by way of one draft, whoever else does."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self.storage.data["draft"] = dict(self.storage.data[request.source])
        made = super().create_snapshot(request)
        self.storage.data[f"@{made.handle}"] = self.storage.data.pop("draft", {})
        return made


class ThawsForAll(Looped):
    """Takes a filesystem that is frozen already for its own."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        device = self.loops.find(self.file(request.source))
        with ExitStack() as thaw:
            for mount in loopfile.mounted(device) if device else ():
                descriptor = os.open(mount.target, os.O_RDONLY)
                thaw.callback(os.close, descriptor)
                thaw.callback(self._ask, descriptor, THAW)
                self._ask(descriptor, FREEZE)
            return super().create_snapshot(request)

    def _ask(self, descriptor: int, request: int) -> None:
        with suppress(OSError):
            fcntl.ioctl(descriptor, request, 0)


class StartsACopy(MemoryBackend):
    """Lets the storage copy, looks how far it is, and does not keep the source meanwhile."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        self.storage.put(self.storage.iops, "job", 1)
        source = self.storage.volumes.get(request.source.handle)
        if source:
            self.storage.total_size()
        self.storage.drop(self.storage.iops, "job")
        if not source:
            raise missing("volume", request.source.handle)
        return self._put(request, default=source.size)


def watched() -> Storage:
    return memory.storage(StartsACopy, read_only_calls=("fetch", "listed", "total_size", "drop"))


BROKEN = [
    (
        interleaved_copies.a_clone_is_whole_if_another_process_deletes_its_source_at_any_call,
        watched,
        "paused before call 2 (total_size) while another process made delete_volume of its source",
    ),
    (
        interleaved_copies.a_clone_is_of_one_point_in_time_if_another_process_writes_at_any_call,
        CopiesInTwoSteps,
        "(total_size) while another process made open_device and writes: the copy is of no point in time",
    ),
    (
        interleaved_copies.a_snapshot_is_of_one_point_in_time_if_another_process_writes_at_any_call,
        CopiesInTwoSteps,
        "first block is as it was after write 0 of 3, its last one is as it was after write 2 of 3",
    ),
    (
        interleaved_copies.a_restored_volume_is_its_snapshot_if_another_process_writes_at_any_call,
        RestoresTheOrigin,
        "the copy is of no point in time that it may be of",
    ),
    (
        interleaved_copies.a_snapshot_is_whole_if_another_process_deletes_its_source_at_any_call,
        LooksBeforeItLocks,
        "the first block differs",
    ),
    (
        interleaved_copies.a_clone_is_whole_if_another_process_deletes_its_source_at_any_call,
        LooksBeforeItLocks,
        "the first block differs",
    ),
    (
        interleaved_copies.two_processes_create_two_snapshots_of_a_volume,
        OneDraft,
        "while another process made create_snapshot of the volume with another name, then the copy",
    ),
    (
        interleaved_copies.two_processes_create_two_snapshots_of_a_mounted_filesystem,
        looped(ThawsForAll),
        "while another process made another snapshot of it, and writes: the copy is of no point in time",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN[:-1])
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.root
@pytest.mark.parametrize(("check", "backend", "words"), BROKEN[-1:])
def test_the_check_sees_it_on_a_device(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
