"""Backends that do not expect a deadline that is over, and the checks that find it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from csi_multi_testing.check import CheckState
from csi_multi_testing.checks import deadlines
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    ResourceExhausted,
    Snapshot,
    SnapshotRequest,
    Timeout,
    Volume,
    VolumeRequest,
)


class Waiting(MemoryBackend):
    """Waits for what is left of the time."""

    error: Exception = ValueError("timeout must not be negative")

    def wait(self, request: Any) -> None:
        if request.deadline is not None and request.deadline < time.monotonic():
            raise self.error

    def create_volume(self, request: VolumeRequest) -> Volume:
        self.wait(request)
        return super().create_volume(request)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        self.wait(request)
        return super().create_snapshot(request)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.wait(request)
        return super().expand_volume(request)


class Final(Waiting):
    """Takes no time for no space."""

    error = ResourceExhausted("the volume was not ready in time")


class Punctual(Waiting):
    """Correct."""

    error = Timeout("the volume is not ready yet; the next try waits for it")


BROKEN = [
    (deadlines.a_creation_whose_time_is_over_can_be_repeated, Waiting, "create_volume with a deadline that is over"),
    (deadlines.a_creation_whose_time_is_over_can_be_repeated, Final, "over: raised ResourceExhausted"),
    (deadlines.a_snapshot_whose_time_is_over_can_be_repeated, Waiting, "over: raised ValueError"),
    (deadlines.an_expansion_whose_time_is_over_can_be_repeated, Final, "over: raised ResourceExhausted"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


@pytest.mark.parametrize("check", [check for check, _, _ in BROKEN])
def test_what_is_not_ready_in_time_may_be_refused_with_timeout(judged: Any, check: Any) -> None:
    outcome = judged(check, Punctual)

    assert outcome.state is CheckState.PASSED, outcome.text
