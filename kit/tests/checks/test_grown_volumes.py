"""Backends that know the first size of a volume only, and the checks that find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import grown_volumes
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
)


class FirstSizes(MemoryBackend):
    """Reads the size of what it copies from where the creation has put it."""

    @property
    def sizes(self) -> dict[str, int]:
        known: dict[str, int] = vars(self.storage).setdefault("sizes", {})
        return known

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        self.sizes[made.handle] = made.size
        return made

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = replace(super().create_snapshot(request), size=self.sizes[request.source])
        self.storage.snapshots[made.handle] = made
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        return self._put(request, default=self.sizes[request.source.handle])


class FirstBlocks(FirstSizes):
    """Makes copies of the right size, and copies as much as the volume had first."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = MemoryBackend.create_snapshot(self, request)
        self.cut(f"@{made.handle}", self.sizes[request.source])
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = MemoryBackend.clone_volume(self, request)
        assert request.source
        self.cut(made.handle, self.sizes[request.source.handle])
        return made

    def cut(self, key: str, size: int) -> None:
        self.storage.data[key] = {at: block for at, block in self.storage.data[key].items() if at < size}


class Detaching(MemoryBackend):
    """A copy that grows is no longer a copy."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        if self.get_volume(request.handle).stamp.source:
            self.storage.data[request.handle] = {}
        return super().expand_volume(request)


class SharingBeyond(MemoryBackend):
    """What is beyond the first size of a copy goes with its source."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        self.forget(handle)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        size = self.get_volume(handle).size
        super().delete_volume(handle, secrets)
        self.forget(handle, size)

    def forget(self, source: str, size: int = 4096 * 2) -> None:
        for one in self.storage.volumes.values():
            if one.stamp.source and one.stamp.source.handle == source and one.size > size:
                self.storage.data[one.handle].pop(one.size - 4096, None)


class GrowingInto(MemoryBackend):
    """Grows into space that others had."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        vars(self.storage).setdefault("freed", {}).update(self.storage.data.get(handle, {}))
        super().delete_volume(handle, secrets)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        before = self.get_volume(request.handle).size
        done = super().expand_volume(request)
        found = {at: block for at, block in vars(self.storage).get("freed", {}).items() if at >= before}
        self.storage.data[request.handle] = found | self.storage.data.get(request.handle, {})
        return done


class GrowsAsNew(MemoryBackend):
    """Needs space for all of a volume that grows."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        if request.size.required > self._free():
            raise ResourceExhausted(f"{request.size.required} bytes requested, {self._free()} bytes free")
        return super().expand_volume(request)


def small() -> Storage:
    return memory.storage(GrowsAsNew, capacity=32 * 16 * MIB)


BROKEN = [
    (grown_volumes.a_snapshot_of_a_grown_volume_is_of_all_of_it, FirstSizes, "33554432 bytes: the copy has 16777216"),
    (grown_volumes.a_snapshot_of_a_grown_volume_is_of_all_of_it, FirstBlocks, "end of the grown volume is not there"),
    (grown_volumes.a_clone_of_a_grown_volume_is_of_all_of_it, FirstSizes, "33554432 bytes: the copy has 16777216"),
    (grown_volumes.a_clone_of_a_grown_volume_is_of_all_of_it, FirstBlocks, "end of the grown volume is not there"),
    (
        grown_volumes.a_restored_volume_keeps_its_data_when_it_grows,
        Detaching,
        "restore_volume, then expand_volume of the copy: the first block",
    ),
    (grown_volumes.a_restored_volume_keeps_its_data_when_it_grows, SharingBeyond, "deletion of its source, served"),
    (
        grown_volumes.a_clone_keeps_its_data_when_it_grows,
        Detaching,
        "clone_volume, then expand_volume of the copy: the first block",
    ),
    (grown_volumes.a_clone_keeps_its_data_when_it_grows, SharingBeyond, "deletion of its source, served"),
    (
        grown_volumes.a_volume_that_grows_before_its_first_use_shows_nothing_of_a_deleted_one,
        GrowingInto,
        "a new volume that has grown from 16777216 to 33554432",
    ),
    (
        grown_volumes.a_volume_grows_by_what_the_capacity_reports,
        small,
        "469762048 bytes, while capacity() reports 134217728",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
