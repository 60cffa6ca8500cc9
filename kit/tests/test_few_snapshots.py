"""A storage whose volumes can have few snapshots, deleted ones included, as of a chain of copies, passes the kit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome
from csi_multi_testing.checks import CHECKS, crashes
from csi_multi_testing.checks.storage_fields import LEAST_SNAPSHOTS
from csi_multi_testing.memory import MemoryBackend
from csi_multi_testing.storage import Storage

from csi_multi.contract import GroupSnapshot, GroupSnapshotRequest, ResourceExhausted, Snapshot, SnapshotRequest


class Chained(MemoryBackend):
    """Every snapshot adds a layer to its volume, which stays there when the snapshot is deleted."""

    def _cut(self, source: str) -> None:
        layers: Counter[str] = vars(self.storage).setdefault("layers", Counter())
        if layers[source] >= LEAST_SNAPSHOTS:
            raise ResourceExhausted(f"volume {source!r} has {LEAST_SNAPSHOTS} layers; clone it")
        layers[source] += 1

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        with self.storage.lock:
            if self.leaf(request.name) not in self.storage.snapshots and request.source in self.storage.volumes:
                self._cut(request.source)
            return super().create_snapshot(request)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        with self.storage.lock:
            if self.leaf(request.stamp.name) not in self.storage.groups:
                for source in request.sources:
                    self._cut(source)
            return super().create_group_snapshot(request)


@pytest.fixture
def storage() -> Storage:
    return memory.storage(Chained, snapshots=LEAST_SNAPSHOTS)


def test_chained(csi_contract: Callable[[], None]) -> None:
    csi_contract()


def test_without_the_field_it_is_given_more_than_it_can_have(judged: Callable[..., Outcome]) -> None:
    outcome = judged(crashes.a_group_snapshot_completes_once_after_a_crash_at_any_call, Chained)

    assert outcome.state is CheckState.FAILED
    assert f"has {LEAST_SNAPSHOTS} layers" in outcome.text


@pytest.mark.parametrize("name", [name for name, one in CHECKS.items() if "in use is of one point in time" in name])
def test_the_complete_checks_spread_their_copies_over_several_volumes(
    judged: Callable[..., Outcome], name: str
) -> None:
    """Of which a quick machine makes many."""
    storage = memory.storage(Chained, snapshots=LEAST_SNAPSHOTS, complete=True)

    outcome = judged(CHECKS[name].body, lambda: storage)

    assert outcome.state is CheckState.PASSED, outcome.text
    assert outcome.notes == ("50 copies at one point in time",)
