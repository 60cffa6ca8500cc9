"""Backends that keep something of what they refuse, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import refusals
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import MIB

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    GroupSnapshot,
    GroupSnapshotRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    Strings,
    Volume,
    VolumeRequest,
)

from .test_full_storage import small


class Promising(MemoryBackend):
    """A quota: what is promised to each name, snapshots included. Correct."""

    @property
    def promises(self) -> dict[str, int]:
        found: dict[str, int] = vars(self.storage).setdefault("promises", {})
        return found

    def _free(self) -> int:
        return max(0, int(self.config.capacity) - sum(self.promises.values()) - self.storage.others)

    def promise(self, key: str, size: int) -> None:
        """Raises ResourceExhausted, and then nothing is promised."""
        before, free = self.promises.get(key, 0), self._free()
        if size - before > free:
            raise ResourceExhausted(f"{size} bytes requested, {free} bytes free")
        self.promises[key] = size

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        made = super()._put(request, default)
        self.promises[made.handle] = made.size
        return made

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.promise(request.handle, max(request.size.required, self.get_volume(request.handle).size))
        return super().expand_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        name = f"@{self.leaf(request.name)}"
        self.promise(name, self.get_volume(request.source).size)
        return super().create_snapshot(request)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        name = f"@@{self.leaf(request.stamp.name)}"
        self.promise(name, sum(self.get_volume(one).size for one in request.sources))
        return super().create_group_snapshot(request)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        super().delete_volume(handle, secrets)
        self.promises.pop(handle, None)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_snapshot(handle, secrets)
        self.promises.pop(f"@{handle}", None)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        super().delete_group_snapshot(handle, secrets)
        self.promises.pop(f"@@{handle}", None)


class Keeping(Promising):
    """Registers the new size, and then looks whether there is space."""

    def promise(self, key: str, size: int) -> None:
        free = self._free() + self.promises.get(key, 0)
        self.promises[key] = size
        if size > free:
            raise ResourceExhausted(f"{size} bytes requested, {free} bytes free")


class KeepingOfCreations(Promising):
    def _put(self, request: VolumeRequest, default: int) -> Volume:
        try:
            return super()._put(request, default)
        except ResourceExhausted:
            self.promises[self.leaf(request.name)] = request.size.required
            raise


class KeepingOfCopies(Promising):
    def _put(self, request: VolumeRequest, default: int) -> Volume:
        try:
            return super()._put(request, default)
        except ResourceExhausted:
            if request.source:
                self.promises[self.leaf(request.name)] = max(request.size.required, default)
            raise


class KeepingOfGroups(Promising):
    """Promises the space of one member after the other."""

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        for number, one in enumerate(request.sources):
            self.promise(f"@@{self.leaf(request.stamp.name)}-{number}", self.get_volume(one).size)
        return MemoryBackend.create_group_snapshot(self, request)


class Littering(Promising):
    """Leaves what it began when there is no space for the growth."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        try:
            return super().expand_volume(request)
        except ResourceExhausted:
            self.storage.put(self.storage.data, f"{request.handle}-new", {})
            raise


class Growing(MemoryBackend):
    """Has a reserve for growth that it does not report. Correct."""

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        others, self.storage.others = self.storage.others, -1000 * MIB
        try:
            return super().expand_volume(request)
        finally:
            self.storage.others = others


BROKEN = [
    (
        refusals.a_growth_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(Keeping),
        "refused for lack of space, lowered capacity().available from",
    ),
    (
        refusals.a_growth_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(Littering),
        "refused, but the storage changed",
    ),
    (
        refusals.a_creation_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(KeepingOfCreations),
        "create_volume of",
    ),
    (
        refusals.a_creation_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(KeepingOfCopies),
        "clone_volume with",
    ),
    (
        refusals.a_copy_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(KeepingOfCopies),
        "clone_volume of more than half of the storage, refused",
    ),
    (
        refusals.a_copy_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(Keeping),
        "create_snapshot of more than half of the storage, refused",
    ),
    (
        refusals.a_copy_that_is_refused_for_lack_of_space_takes_nothing_of_it,
        small(KeepingOfGroups),
        "create_group_snapshot of more than half of the storage, refused",
    ),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


CORRECT = [pytest.param(one.body, id=one.name) for one in CHECKS.values() if one.group == "refusals"]


@pytest.mark.parametrize("kind", [MemoryBackend, Promising, Growing])
@pytest.mark.parametrize("check", CORRECT)
def test_a_backend_that_keeps_nothing_passes(judged: Callable[..., Outcome], check: Any, kind: Any) -> None:
    outcome = judged(check, small(kind))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_storage_that_promises_its_space_again_and_again_is_skipped(judged: Callable[..., Outcome]) -> None:
    for check in (one.values[0] for one in CORRECT):
        outcome = judged(check, lambda: replace(memory.storage(), overcommitted=True))

        assert outcome.state is CheckState.SKIPPED, outcome.text
