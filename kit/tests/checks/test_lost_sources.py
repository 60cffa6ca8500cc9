"""Backends that keep what a crash left of a copy whose source is gone, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import lost_sources
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.operations import base

from csi_multi.contract import (
    Busy,
    GroupSnapshot,
    GroupSnapshotRequest,
    InUse,
    NotFound,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
    leaf,
)

from .file_backend import VOLUMES, FileBackend, over_files


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PAUSES", (0, 0))


class LooksForTheSourceFirst(MemoryBackend):
    """Cleans up what an earlier try left only once it knows that there is a source."""

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        self.get_snapshot(request.source.handle)
        return super().restore_volume(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        self.get_volume(request.source.handle)
        return super().clone_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self.get_volume(request.source)
        return super().create_snapshot(request)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        for source in request.sources:
            self.get_volume(source)
        return super().create_group_snapshot(request)


class PinsTheSource(MemoryBackend):
    """Counts the copies that need a volume, and a copy that was begun twice for two."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        pins, name = self.storage.iops, f"pins of {request.source.handle}"
        self.storage.put(pins, name, pins.get(name, 0) + 1)
        try:
            return super().clone_volume(request)
        finally:
            self.storage.put(pins, name, pins[name] - 1)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if self.storage.iops.get(f"pins of {handle}"):
            raise InUse(f"volume {handle!r} is being copied")
        super().delete_volume(handle, secrets)


class KeepsTheSource(MemoryBackend):
    """Correct: a snapshot or copy that was begun needs its source, until the request is repeated."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        pin = f"{request.source.handle} for {self.leaf(request.name)}"
        self.storage.put(self.storage.iops, pin, 1)
        try:
            return super().clone_volume(request)
        finally:
            self.storage.drop(self.storage.iops, pin)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        if any(pin.startswith(f"{handle} for ") for pin in self.storage.iops):
            raise InUse(f"volume {handle!r} is being copied")
        super().delete_volume(handle, secrets)


class WaitsForTheSource(LooksForTheSourceFirst):
    """Asks to try again while the source of what it has begun is missing."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        begun = self.leaf(request.name) in self.storage.data
        try:
            return super().clone_volume(request)
        except NotFound:
            if begun:
                raise Busy("the source is missing") from None
            raise


class EndsWithWhatThereIs(FileBackend):
    """Gives a copy that was begun its name, though its source is gone."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        begun = (self.root / VOLUMES / f".{leaf(request.name)}").exists()
        try:
            return super().clone_volume(request)
        except NotFound:
            if not begun:
                raise
            return self.create_volume(request)


SOURCE_GONE = "then the deletion of its source, then the same request again"

BROKEN = [
    (
        lost_sources.nothing_stays_of_a_crashed_restore_whose_snapshot_was_deleted,
        LooksForTheSourceFirst,
        f"{SOURCE_GONE}, then deleted: remaining: data",
    ),
    (
        lost_sources.nothing_stays_of_a_crashed_clone_whose_source_was_deleted,
        LooksForTheSourceFirst,
        f"{SOURCE_GONE}, then deleted: remaining: data",
    ),
    (
        lost_sources.nothing_stays_of_a_crashed_clone_whose_source_was_deleted,
        PinsTheSource,
        "the deletion at its end: raised InUse",
    ),
    (
        lost_sources.nothing_stays_of_a_crashed_clone_whose_source_was_deleted,
        WaitsForTheSource,
        "a source that is gone does not come back",
    ),
    (
        lost_sources.nothing_stays_of_a_crashed_clone_whose_source_was_deleted,
        over_files(EndsWithWhatThereIs),
        "the first block differs",
    ),
    (
        lost_sources.nothing_stays_of_a_crashed_snapshot_whose_volume_was_deleted,
        LooksForTheSourceFirst,
        f"{SOURCE_GONE}, then deleted: remaining: data",
    ),
    (
        lost_sources.nothing_stays_of_a_crashed_group_snapshot_whose_volumes_were_deleted,
        LooksForTheSourceFirst,
        f"{SOURCE_GONE}, then deleted: remaining: data",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


CHECKS = sorted({check.__name__: check for check, _, _ in BROKEN}.items())


@pytest.mark.parametrize("check", [check for _, check in CHECKS], ids=[name for name, _ in CHECKS])
@pytest.mark.parametrize(
    "backend", [MemoryBackend, KeepsTheSource, over_files(FileBackend)], ids=["memory", "kept", "files"]
)
def test_a_backend_that_cleans_up_before_it_looks_for_the_source_passes(
    judged: Any, check: Callable[..., None], backend: Any
) -> None:
    outcome = judged(check, backend)

    assert outcome.state is CheckState.PASSED or "does not declare GroupSnapshots" in outcome.text, outcome.text
