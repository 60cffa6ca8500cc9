"""Backends that answer a final error although they could not undo what they had begun, and the check that finds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from csi_multi_testing.checks import refused_faults
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import Snapshot, SnapshotRequest, StorageError, Volume, VolumeRequest

CHECK = refused_faults.a_refused_creation_leaves_nothing_when_a_call_fails


class Begins(MemoryBackend):
    """Begins with a draft, which goes at the end, however that is. Correct."""

    def undo(self, key: str) -> None:
        self.storage.drop(self.storage.data, key)

    @contextmanager
    def draft(self, name: str) -> Iterator[None]:
        key = f"{self.leaf(name)}-draft"
        self.storage.put(self.storage.data, key, {})
        try:
            yield
        finally:
            self.undo(key)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        with self.draft(request.name):
            return super().clone_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.draft(request.name):
            return super().create_snapshot(request)


class Swallows(Begins):
    """A draft that cannot be removed changes nothing about the error."""

    def undo(self, key: str) -> None:
        with suppress(StorageError):
            super().undo(key)


class Accepts(MemoryBackend):
    """A clone is as large as its source, whatever the limit."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        try:
            return super().clone_volume(request)
        except StorageError:
            assert request.source
            return self.get_volume(request.source.handle)


BROKEN = [
    (
        refused_faults.a_refused_creation_leaves_nothing_when_a_call_fails,
        Swallows,
        "which is final (Busy, Unavailable or Timeout would be repeated): remaining: ",
    ),
    (refused_faults.a_refused_creation_leaves_nothing_when_a_call_fails, Accepts, "requires an error that is final"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_draft_that_is_removed_or_reported_passes(judged: Any) -> None:
    assert judged(CHECK, Begins).text == ""
