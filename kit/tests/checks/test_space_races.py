"""Backends that give the same space to several at once, and the check that finds it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import space_races
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB, Storage

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    Volume,
    VolumeRequest,
)

SPACE = 640 * MIB


class LooksFirst(MemoryBackend):
    """Looks at what is left, and takes it later."""

    looking = True

    def _free(self) -> int:
        free = super()._free()
        if self.looking:
            time.sleep(0.002)
        return free

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        size = request.size.choose(granularity=4096, minimum=default if request.source else 1, default=default)
        if size > self._free():
            raise ResourceExhausted(f"{size} bytes requested, {self._free()} bytes free")
        return _Unlimited(self.config, self.setting, self.storage)._put(request, default)


class _Unlimited(MemoryBackend):
    def _free(self) -> int:
        return 1 << 60


class LooksFirstForCopies(LooksFirst):
    """Only new volumes are made under the lock."""

    def create_volume(self, request: VolumeRequest) -> Volume:
        return MemoryBackend._put(self, request, default=MIB)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        return self._put(request, default=self.get_volume(request.source.handle).size)


class GrowsLater(MemoryBackend):
    """Only new volumes are made under the lock."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        more = request.size.required - self.get_volume(request.handle).size
        if more > self._free():
            raise ResourceExhausted(f"{more} bytes needed, {self._free()} bytes free")
        time.sleep(0.002)
        return _Unlimited(self.config, self.setting, self.storage).expand_volume(request)


class LooksFirstForSnapshots(MemoryBackend):
    """Only volumes are made under the lock."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        size = self.get_volume(request.source).size
        if size > self._free():
            raise ResourceExhausted(f"{size} bytes needed, {self._free()} bytes free")
        time.sleep(0.002)
        return super().create_snapshot(request)


class Refusing(LooksFirstForSnapshots):
    """Looks and takes under one lock. Correct."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.storage.lock:
            return super().create_snapshot(request)


def with_space(kind: type[MemoryBackend]) -> Callable[[], Storage]:
    return lambda: memory.storage(kind, capacity=SPACE)


BROKEN = [
    (
        space_races.creations_at_once_get_no_more_than_the_capacity,
        with_space(LooksFirst),
        "calls of create_volume at once succeeded",
    ),
    (
        space_races.creations_at_once_get_no_more_than_the_capacity,
        with_space(LooksFirstForCopies),
        "calls of clone_volume at once succeeded",
    ),
    (
        space_races.creations_at_once_get_no_more_than_the_capacity,
        with_space(LooksFirstForSnapshots),
        "calls of create_snapshot at once succeeded",
    ),
    (
        space_races.expansions_at_once_get_no_more_than_the_capacity,
        with_space(GrowsLater),
        "calls of expand_volume at once succeeded",
    ),
]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_races, "FREED_SECONDS", 0.1)


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_expansions_that_look_and_take_at_once_pass(judged: Callable[..., Any]) -> None:
    outcome = judged(space_races.expansions_at_once_get_no_more_than_the_capacity, with_space(MemoryBackend))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_one_lock_for_looking_and_taking_passes(judged: Callable[..., Any]) -> None:
    outcome = judged(space_races.creations_at_once_get_no_more_than_the_capacity, with_space(Refusing))

    assert outcome.state is CheckState.PASSED, outcome.text
    assert any("create_snapshot beside" in note for note in outcome.notes)
