"""Backends that look for a name in a text, and the checks that find it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.checks import similar_names
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    NO_SECRETS,
    Device,
    ExpandRequest,
    Expansion,
    Page,
    PageRequest,
    Snapshot,
    Strings,
)
from csi_multi.host import loopdev
from csi_multi.host.loopfile import device_of

from .loop_devices import Looped, looped, remove_devices


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class DeletesBeginnings(MemoryBackend):
    """Removes the objects of a volume by the beginning of their names."""

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(handle, secrets)
        for key in self.storage.data:
            if key.startswith(handle):
                self.storage.data[key] = {}


class GrowsAll(MemoryBackend):
    """Expands what a pattern finds."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        done = super().expand_volume(request)
        for handle, volume in self.storage.volumes.items():
            if request.handle in handle:
                self.storage.volumes[handle] = memory.replace(volume, size=done.size)
        return done


class ListsBeginnings(MemoryBackend):
    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        rows = {key: one for key, one in self.storage.snapshots.items() if one.source.startswith(source or "")}
        return self.storage.listed(rows, page)


class DeletesSnapshotsThatBegin(MemoryBackend):
    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        for key in [key for key in self.storage.snapshots if key.startswith(handle)]:
            super().delete_snapshot(key, secrets)


class Searching(Looped):
    """Looks for the line with the name in the list of devices."""

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        for device, file in loopdev.bound_devices().items():
            if Path(file).parent == self.root and handle in Path(file).name:
                return device_of(device, self.blank(handle))
        return super().find_device(handle)


BROKEN = [
    (
        similar_names.a_change_of_a_volume_does_not_touch_one_whose_name_contains_its_name,
        DeletesBeginnings,
        "the first block differs",
    ),
    (
        similar_names.a_change_of_a_volume_does_not_touch_one_whose_name_contains_its_name,
        GrowsAll,
        "expand_volume of",
    ),
    (
        similar_names.the_snapshots_of_a_volume_are_not_those_of_one_whose_name_contains_its_name,
        ListsBeginnings,
        "list_snapshots of",
    ),
    (
        similar_names.the_snapshots_of_a_volume_are_not_those_of_one_whose_name_contains_its_name,
        DeletesSnapshotsThatBegin,
        "does not exist",
    ),
    pytest.param(
        *(
            similar_names.the_device_of_a_volume_is_not_that_of_one_whose_name_contains_its_name,
            looped(Searching),
            "beside open devices of volumes whose names contain its name",
        ),
        marks=pytest.mark.root,
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
