"""Backends that take zeros for nothing, and the checks that find it."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import zeros
from csi_multi_testing.memory import MemoryBackend, MemoryStorage
from csi_multi_testing.memory_storage import data_key

from csi_multi.contract import Snapshot, SnapshotRequest, Volume, VolumeRequest


class Layered(MemoryBackend):
    """What a layer has no data for is read from the layer below, and zeros are no data."""

    def flatten(self, key: str, below: str) -> None:
        own = {at: block for at, block in self.storage.data.get(key, {}).items() if any(block)}
        self.storage.data[key] = self.storage.data.get(below, {}) | own

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        made = super().create_snapshot(request)
        earlier = [one for one in self.storage.snapshots.values() if one.source == made.source and one != made]
        if source := self.get_volume(made.source).stamp.source:
            self.flatten(f"@{made.handle}", data_key(source))
        for one in earlier:
            self.flatten(f"@{made.handle}", f"@{one.handle}")
        return made

    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = super().clone_volume(request)
        assert request.source
        if source := self.get_volume(request.source.handle).stamp.source:
            self.flatten(made.handle, data_key(source))
        return made


class DropsZeros(MemoryStorage):
    """Writes nothing where it is given zeros."""

    def write(self, handle: str, offset: int, data: bytes) -> None:
        if any(data):
            super().write(handle, offset, data)


def dropping() -> Any:
    return memory.storage(rows=DropsZeros)


BROKEN = [
    (
        zeros.zeros_that_replace_the_data_of_a_snapshot_stay_zeros,
        Layered,
        "a volume with a snapshot, whose blocks were zeroed, then a copy of it: the data at 0",
    ),
    (zeros.zeros_that_replace_the_data_of_a_snapshot_stay_zeros, dropping, "zeros were written at 0, and are not"),
    (
        zeros.zeros_that_replace_the_data_of_a_clone_stay_zeros,
        Layered,
        "a clone, whose blocks were zeroed, then a copy of it: the data at 0",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
