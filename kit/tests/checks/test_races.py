"""Backends that fail with concurrent calls, and the checks that find it."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import concurrency
from csi_multi_testing.checks import races
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base

from csi_multi.contract import (
    AlreadyExists,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InvalidArgument,
    ModifyRequest,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
    leaf,
)

MOMENT = 0.003  # seconds: long enough for the other threads


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))
    monkeypatch.setattr(races, "ROUNDS", 12)  # who is first is chance


class LooksThenMakes(MemoryBackend):
    """Looks whether the name is taken, then makes something under an id of its own."""

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        self._refuse(self.storage.volumes, request.name)
        made = super()._put(replace(request, stamp=replace(request.stamp, name=uuid.uuid4().hex)), default)
        self.storage.volumes[made.handle] = made = replace(made, stamp=request.stamp)
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        return self._put(request, default=self.get_volume(request.source.handle).size)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self._refuse(self.storage.snapshots, request.name)
        made = super().create_snapshot(replace(request, stamp=replace(request.stamp, name=uuid.uuid4().hex)))
        self.storage.snapshots[made.handle] = made = replace(made, stamp=request.stamp)
        return made

    def _refuse(self, rows: dict[str, Any], name: str) -> None:
        if name in {one.stamp.name for one in list(rows.values())}:
            raise AlreadyExists(name)
        time.sleep(MOMENT)

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(_named(self.storage.volumes, name))

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(_named(self.storage.snapshots, name))


def _named(rows: dict[str, Any], name: str) -> str:
    return next((handle for handle, one in list(rows.items()) if one.stamp.name == name), name)


class Forgetful(MemoryBackend):
    """Makes one more volume for each request."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return super().create_volume(replace(request, stamp=replace(request.stamp, name=uuid.uuid4().hex)))


class RewritesTheTable(MemoryBackend):
    """Reads all volumes, changes one, writes all back."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        rows = dict(self.storage.volumes)
        time.sleep(MOMENT)
        made = super().create_volume(request)
        self.storage.volumes = rows | {made.handle: made}
        return made

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        rows = dict(self.storage.volumes)
        super().delete_volume(handle, secrets)
        self.storage.volumes = {}
        time.sleep(MOMENT)
        self.storage.volumes = {key: row for key, row in rows.items() if key != handle}


class Blunt(MemoryBackend):
    """Gives final answers to what would be fine a moment later."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if leaf(request.name) in self.storage.iops and leaf(request.name) in self.storage.volumes:
            raise FailedPrecondition("the volume is being deleted")
        return super().create_volume(request)

    def find_volume(self, name: str) -> Volume:
        if f"{leaf(name)} deleting" in self.storage.iops:
            raise FailedPrecondition("the volume is being deleted")
        return super().find_volume(name)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self.storage.iops[f"{handle} deleting"] = 1
        time.sleep(MOMENT)
        try:
            super().delete_volume(handle, secrets)
        except NotFound:
            raise FailedPrecondition("the volume is not there") from None
        finally:
            del self.storage.iops[f"{handle} deleting"]

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        raise InvalidArgument("now is not the time")


class AsksForAll(MemoryBackend):
    """Asks for several volumes at once, and takes a refusal of one for a refusal of all."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.asked: list[str] = []

    def get_volume(self, handle: str) -> Volume:
        self.asked.append(handle)
        try:
            time.sleep(MOMENT)
            for one in list(self.asked):
                super().get_volume(one)
            return super().get_volume(handle)
        finally:
            self.asked.remove(handle)


class Joins(MemoryBackend):
    """Takes a growth that comes while a volume is modified for a part of that change, which has been sent already."""

    changing = False

    def modify_volume(self, request: ModifyRequest) -> None:
        self.changing = True
        time.sleep(10 * MOMENT)
        super().modify_volume(request)
        self.changing = False

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        if self.changing:
            return Expansion(size=request.size.required)
        return super().expand_volume(request)


class Lazy(MemoryBackend):
    """Answers before the bytes are copied, and copies when nobody hurries."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        self.storage.data[f"@{made.handle}"] = {}
        return made

    def restore_volume(self, request: VolumeRequest) -> Volume:
        made = super().restore_volume(request)
        self.storage.data[made.handle] = {}
        return made


class Hangs(MemoryBackend):
    """Waits for a lock that nobody releases."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        if leaf(request.name) in self.storage.volumes:
            time.sleep(0.3)
        return super().create_volume(request)


class ClonesWhatItSaw(MemoryBackend):
    """Looks at the source, and takes its data a moment later."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        size = self.get_volume(request.source.handle).size
        time.sleep(MOMENT)
        return self._put(request, default=size)


BROKEN = [
    (
        races.a_concurrent_clone_and_deletion_of_its_source_are_serialized,
        ClonesWhatItSaw,
        "clone_volume, beside a deletion of its source: the first block differs",
    ),
    (races.unknown_volumes_do_not_hide_others_that_are_read_at_the_same_time, AsksForAll, "raised NotFound"),
    (
        races.a_concurrent_expansion_and_modification_both_take_effect,
        Joins,
        "expand_volume, beside a modification: succeeded, then get_volume shows",
    ),
    (races.processes_that_create_the_same_volume_create_it_once, LooksThenMakes, "the handle of an answer"),
    (races.processes_that_create_the_same_clone_create_it_once, LooksThenMakes, "the handle of an answer"),
    (races.processes_that_create_the_same_snapshot_create_it_once, LooksThenMakes, "the handle of an answer"),
    (races.threads_that_create_the_same_volume_create_it_once, Forgetful, "the handle of an answer"),
    (races.concurrent_creations_and_deletions_of_one_name_are_serialized, Blunt, "is being deleted"),
    (races.concurrent_deletions_of_one_volume_all_succeed, Blunt, "is not there"),
    (races.concurrent_operations_on_different_volumes_are_independent, RewritesTheTable, "after work on other volumes"),
    (races.a_concurrent_expansion_and_snapshot_are_serialized, Blunt, "raised InvalidArgument"),
    (races.a_concurrent_snapshot_and_deletion_of_its_source_are_serialized, Lazy, "the first block differs"),
    (races.a_concurrent_restore_and_deletion_of_its_snapshot_are_serialized, Lazy, "the first block differs"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_call_that_hangs_is_named(fails: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "TIME_LIMIT", 0.1)

    fails(
        races.processes_that_create_the_same_volume_create_it_once,
        Hangs,
        "create_volume, 8 times at once: does not return",
    )
