"""Backends that keep what they copied while a freeze failed, and the checks that find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import failed_freezes

from csi_multi.contract import (
    GroupSnapshot,
    GroupSnapshotRequest,
    Snapshot,
    SnapshotRequest,
    StorageError,
    Unavailable,
    Volume,
    VolumeRequest,
)

from .file_backend import FileBackend, over_files
from .grouped_files import Grouped


class Freezes(Grouped):
    """Freezes what is open, and keeps what it has made in that time."""

    @contextmanager
    def frozen(self, *handles: str) -> Iterator[None]:
        with ExitStack() as stack:
            for handle in handles:
                if found := self.find_device(handle):
                    stack.enter_context(self.setting.frozen(found.path))
            yield

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.frozen(request.source):
            return super().create_snapshot(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        with self.frozen(request.source.handle):
            return super().clone_volume(request)


class FreezesGroups(Freezes):
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        with self.frozen(*request.sources):
            return super().create_group_snapshot(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return FileBackend.create_snapshot(self, request)


class Ignores(Freezes):
    """Takes a freeze that failed for one that did not matter."""

    @contextmanager
    def frozen(self, *handles: str) -> Iterator[None]:
        try:
            with super().frozen(*handles):
                yield
        except Unavailable:
            pass


class GivesUp(Freezes):
    """Correct: deletes what it has made when the freeze failed."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        try:
            return super().create_snapshot(request)
        except Unavailable:
            self.delete_snapshot(self.find_snapshot(request.stamp.name).handle, {})
            raise

    def clone_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().clone_volume(request)
        except Unavailable:
            self.delete_volume(self.find_volume(request.name).handle, {})
            raise


class GivesUpGroups(FreezesGroups):
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        try:
            return super().create_group_snapshot(request)
        except StorageError:
            self.delete_group_snapshot(self.find_group_snapshot(request.stamp.name).handle, {})
            raise


BROKEN = [
    (failed_freezes.a_snapshot_whose_freeze_failed_is_given_up, Freezes, "then find_snapshot: found"),
    (failed_freezes.a_snapshot_whose_freeze_failed_is_given_up, Ignores, "it succeeded"),
    (failed_freezes.a_clone_whose_freeze_failed_is_given_up, Freezes, "then find_volume: found"),
    (failed_freezes.a_group_whose_freeze_failed_is_given_up, FreezesGroups, "then find_group_snapshot: found"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, over_files(backend), words)


@pytest.mark.parametrize(
    ("check", "backend"),
    [
        (failed_freezes.a_snapshot_whose_freeze_failed_is_given_up, GivesUp),
        (failed_freezes.a_clone_whose_freeze_failed_is_given_up, GivesUp),
        (failed_freezes.a_group_whose_freeze_failed_is_given_up, GivesUpGroups),
    ],
)
def test_a_backend_that_gives_the_copy_up_passes(judged: Callable[..., Outcome], check: Any, backend: Any) -> None:
    outcome = judged(check, over_files(backend))

    assert outcome.state is CheckState.PASSED, outcome.text


def test_a_backend_that_freezes_nothing_is_skipped(judged: Callable[..., Outcome]) -> None:
    outcome = judged(failed_freezes.a_snapshot_whose_freeze_failed_is_given_up, over_files(FileBackend))

    assert outcome.state is CheckState.SKIPPED, outcome.text
