"""Backends that mix up what is asked of them at once, and the checks that find it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing.checks import many_copies
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.memory_storage import data_key

from csi_multi.contract import Device, OpenRequest, Strings, Volume, VolumeRequest

from .loop_devices import Looped, looped, remove_devices


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    remove_devices()


class Racing(Looped):
    """Looks for a free device, and takes it a moment later, when another one has it."""

    def open_device(self, request: OpenRequest) -> Device:
        if found := self.find_device(request.handle):
            return found
        free: dict[str, str] = vars(self.storage).setdefault("free", {})
        first = free.setdefault("device", request.handle)
        time.sleep(0.05)
        device = super().open_device(replace(request, handle=first))
        free.clear()
        return device


class OneDraft(MemoryBackend):
    """Copies by a temporary snapshot that is named after the source, and removes it."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return self.by_draft(request, super().clone_volume)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return self.by_draft(request, super().restore_volume)

    def by_draft(self, request: VolumeRequest, make: Callable[[VolumeRequest], Volume]) -> Volume:
        assert request.source
        key = data_key(request.source)
        drafts: dict[str, dict[int, bytes]] = vars(self.storage).setdefault("drafts", {})
        drafts.setdefault(key, dict(self.storage.data.get(key, {})))
        time.sleep(0.01)
        made = make(request)
        self.storage.data[made.handle] = drafts.pop(key, {})
        return made


class MergesTwice(MemoryBackend):
    """Merges the layers of a volume when a snapshot goes, and two merges meet."""

    merging = threading.Lock()

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        source = self.get_snapshot(handle).source
        alone = self.merging.acquire(blocking=False)
        time.sleep(0.01)
        super().delete_snapshot(handle, secrets)
        if alone:
            self.merging.release()
        else:
            self.storage.data[source] = {}


BROKEN = [
    pytest.param(
        *(
            many_copies.many_devices_are_opened_and_closed_at_once,
            looped(Racing),
            "open_device of 6 volumes at once",
        ),
        marks=pytest.mark.root,
    ),
    (
        many_copies.many_clones_of_one_volume_are_made_at_once,
        OneDraft,
        "clone_volume of one volume, 6 at once, some deleted, then another one: the first block",
    ),
    (
        many_copies.many_volumes_are_restored_from_one_snapshot_at_once,
        OneDraft,
        "restore_volume of one snapshot, 6 at once, some deleted, then another one: the first block",
    ),
    (
        many_copies.many_snapshots_are_made_and_deleted_at_once,
        MergesTwice,
        "6 at once, all but one deleted, then the volume: the first block",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)
