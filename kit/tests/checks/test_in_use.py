"""Backends that copy or change volumes wrongly while these are written, and the checks that find it."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory, numbered_writes
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import in_use
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import (
    NO_SECRETS,
    Device,
    ExpandRequest,
    Expansion,
    GroupSnapshot,
    GroupSnapshotRequest,
    InUse,
    ModifyRequest,
    OpenRequest,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
)
from csi_multi.host.loopfile import device_of

from .loop_devices import Looped, looped, remove_devices

Blocks = dict[int, bytes]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


def wait_for_writes(blocks: Blocks) -> None:
    """Return when half of the blocks have other data than now."""
    before, ends = dict(blocks), time.monotonic() + 60
    while sum(blocks[at] != before[at] for at in before) < len(before) / 2:
        assert time.monotonic() < ends
        time.sleep(0.0001)


def copied_in_two_parts(blocks: Blocks) -> Blocks:
    """Read the front and, some writes later, the rest."""
    places = sorted(blocks)
    middle = len(places) // 2
    copy = {at: blocks[at] for at in places[:middle]}
    wait_for_writes(blocks)
    return copy | {at: blocks[at] for at in places[middle:]}


class CutsInTwoParts(MemoryBackend):
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        self.storage.data[f"@{made.handle}"] = copied_in_two_parts(self.storage.data[made.source])
        return made


class ClonesInTwoParts(MemoryBackend):
    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = super().clone_volume(request)
        assert request.source
        self.storage.data[made.handle] = copied_in_two_parts(self.storage.data[request.source.handle])
        return made


class ClonesFromAnOldImage(MemoryBackend):
    """Clones what an earlier clone of the volume has copied."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = super().clone_volume(request)
        assert request.source
        images: dict[str, Blocks] = self.storage.__dict__.setdefault("images", {})
        self.storage.data[made.handle] = dict(images.setdefault(request.source.handle, self.storage.data[made.handle]))
        return made


class CutsLater(MemoryBackend):
    """Answers at once, and cuts when it is asked whether the snapshot is ready."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = replace(super().create_snapshot(request), ready=False)
        self.storage.snapshots[made.handle] = made
        return made

    def get_snapshot(self, handle: str) -> Snapshot:
        found = super().get_snapshot(handle)
        if not found.ready:
            self.storage.data[f"@{handle}"] = dict(self.storage.data[found.source])
            found = self.storage.snapshots[handle] = replace(found, ready=True)
        return found


class TakesBack(MemoryBackend):
    """Puts back into the volume what it has copied from it, the first time."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        if len(self.storage.snapshots) > 1:  # nobody writes any more when the first time was noticed
            return made
        copy = self.storage.data[f"@{made.handle}"]
        wait_for_writes(self.storage.data[made.source])
        with self.storage.lock:
            self.storage.data[made.source] = dict(copy)
        return made


class CollectsTooMuch(MemoryBackend):
    """Removes, with a snapshot, what its source has got last."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        source = self.get_snapshot(handle).source
        super().delete_snapshot(handle, secrets)
        with self.storage.lock:
            self.storage.data[source].popitem()


class CutsOneAfterAnother(MemoryBackend):
    """Cuts each member at a point in time of its own."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        for member in made.snapshots:
            self.storage.data[f"@{member.handle}"] = dict(self.storage.data[member.source])
            wait_for_writes(self.storage.data[member.source])
        return made


class MovesToExpand(MemoryBackend):
    """Copies the volume to a larger place, and goes on there."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        moved = copied_in_two_parts(self.storage.data[request.handle])
        self.storage.data[request.handle] = moved
        return super().expand_volume(request)


class LosesItsEnd(MemoryBackend):
    """Says that it has expanded."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return Expansion(size=request.size.required)


class MovesToModify(MemoryBackend):
    def modify_volume(self, request: ModifyRequest) -> None:
        super().modify_volume(request)
        self.storage.data[request.handle] = copied_in_two_parts(self.storage.data[request.handle])


def storage_that_refuses_writes() -> Storage:
    """Return storage that refuses writes while a snapshot is cut."""
    cutting, refused = threading.Event(), threading.Event()

    class CutsWithoutWrites(MemoryBackend):
        def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
            cutting.set()
            assert refused.wait(60)
            return super().create_snapshot(request)

    given = memory.storage(CutsWithoutWrites)
    write = given.write
    assert write

    def write_if_allowed(handle: str, offset: int, data: bytes) -> None:
        if cutting.is_set():
            refused.set()
            raise OSError(5, "Input/output error")
        write(handle, offset, data)

    return replace(given, write=write_if_allowed)


class Mixes(MemoryBackend):
    """Writes a block of one volume into the other while both are cut."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        first, second = (self.storage.data[f"@{one.handle}"] for one in made.snapshots)
        second[min(second)] = first[min(first)]
        return made


class WritesBack(Looped):
    """Keeps in a cache what is written to an open device, and brings it to the storage when the device is closed."""

    def open_device(self, request: OpenRequest) -> Device:
        cache = self.root / f"{request.handle}.cache"
        if not cache.exists():
            shutil.copyfile(self.file(request.handle), cache)
        return device_of(self.loops.open(cache), self.blank(request.handle))

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        cache = self.root / f"{handle}.cache"
        if cache.exists():
            self.loops.close(cache)
            cache.replace(self.file(handle))


class CopiesMemberAfterMember(Looped):
    """Copies the files of the members, each as it is at some point in time."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        made = super().create_group_snapshot(request)
        for member in made.snapshots:
            source, ends = self.file(member.source), time.monotonic() + 60
            shutil.copyfile(source, self.file(f"@{member.handle}"))
            for _ in range(2):  # between two writes to one member the other one is written
                before = source.read_bytes()
                while source.read_bytes() == before:
                    assert time.monotonic() < ends
        return made


class Refuses(MemoryBackend):
    """Copies nothing that is in use; it cannot know, so nothing at all."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        raise InUse(f"volume {request.source!r} is open; close it first")

    def clone_volume(self, request: VolumeRequest) -> Volume:
        raise InUse(f"volume {request.source!r} is open; close it first")


SNAPSHOT = in_use.a_snapshot_of_a_volume_in_use_is_of_one_point_in_time_or_refused
CLONE = in_use.a_clone_of_a_volume_in_use_is_of_one_point_in_time_or_refused
GROUP = in_use.a_group_of_volumes_in_use_is_of_one_point_in_time_or_refused

BROKEN = [
    (
        in_use.a_snapshot_of_a_volume_in_use_is_of_one_point_in_time_or_refused,
        CutsInTwoParts,
        "has other data than",
    ),
    (in_use.a_snapshot_of_a_volume_in_use_is_of_one_point_in_time_or_refused, CutsLater, "which began after"),
    (
        in_use.a_snapshot_of_a_volume_in_use_is_of_one_point_in_time_or_refused,
        TakesBack,
        "has other data than",
    ),
    (in_use.deletions_of_snapshots_keep_what_is_written_meanwhile, CollectsTooMuch, "has other data than"),
    (
        in_use.a_clone_of_a_volume_in_use_is_of_one_point_in_time_or_refused,
        ClonesInTwoParts,
        "has other data than",
    ),
    (
        in_use.a_clone_of_a_volume_in_use_is_of_one_point_in_time_or_refused,
        ClonesFromAnOldImage,
        "was durable before the call and is missing",
    ),
    (
        in_use.a_group_of_volumes_in_use_is_of_one_point_in_time_or_refused,
        CutsOneAfterAnother,
        "has other data than",
    ),
    (
        in_use.a_group_of_volumes_in_use_is_of_one_point_in_time_or_refused,
        Mixes,
        "are of no write to it",
    ),
    (in_use.an_expansion_keeps_what_is_written_meanwhile, MovesToExpand, "has other data than"),
    (in_use.an_expansion_keeps_what_is_written_meanwhile, LosesItsEnd, "get_volume has"),
    (in_use.a_modification_keeps_what_is_written_meanwhile, MovesToModify, "has other data than"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_write_that_fails_during_a_snapshot_is_told(fails: Any) -> None:
    fails(SNAPSHOT, storage_that_refuses_writes, "while the volume is open: [Errno 5] Input/output error")


def test_a_first_write_that_fails_is_told(fails: Any) -> None:
    def refuse(handle: str, offset: int, data: bytes) -> None:
        raise OSError(5, "Input/output error")

    fails(SNAPSHOT, lambda: memory.storage(write=refuse), "the first writes: while the volume is open: [Errno 5]")


@pytest.mark.root
def test_writes_that_only_a_cache_of_the_device_holds_are_missed(fails: Any) -> None:
    fails(SNAPSHOT, looped(WritesBack), "are of no write to it")


@pytest.mark.root
def test_members_that_are_copied_one_after_another_are_found_on_real_devices(fails: Any) -> None:
    fails(GROUP, looped(CopiesMemberAfterMember), "has other data than")


@pytest.mark.parametrize("check", [SNAPSHOT, CLONE])
def test_a_copy_may_be_refused_while_its_volume_is_written(judged: Any, check: Callable[..., None]) -> None:
    outcome = judged(check, Refuses)

    assert outcome.state is CheckState.PASSED, outcome.text
    assert [note.partition(": ")[2] for note in outcome.notes] == ["refused while the device is open"]


def test_the_complete_check_cuts_fifty_times(judged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use.Grouping, "seconds", 0)
    notes = [*judged(GROUP, memory.storage).notes, *judged(GROUP, lambda: memory.storage(complete=True)).notes]

    assert notes == [f"{count} copies at one point in time" for count in (in_use.FEWEST_CUTS, 50)]


def test_storage_whose_writes_are_slow_is_written_at_fewer_places(judged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_writes, "FILL_TIME", 0)
    found = memory.storage()
    written: list[tuple[str, int]] = []

    def write(handle: str, offset: int, data: bytes) -> None:
        written.append((handle, offset))
        assert found.write
        found.write(handle, offset, data)

    outcome = judged(GROUP, lambda: replace(found, write=write))

    assert outcome.state is CheckState.PASSED, outcome.text
    assert len({*written}) == 2 * numbered_writes.FEWEST
