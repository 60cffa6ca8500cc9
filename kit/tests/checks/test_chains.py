"""Backends that lose or keep a layer of a chain, and the checks that find it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CHECKS, CheckState, Outcome
from csi_multi_testing.checks import chains
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InUse, Snapshot, SnapshotRequest, Strings, Volume, VolumeRequest

from .layered import LayeredStorage, layered


class TakesTheNext(MemoryBackend):
    """Merges the layer of a deleted snapshot into the next one, over what that has."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        one = self.get_snapshot(handle)
        later = [other for other in self.storage.snapshots.values() if other.source == one.source]
        later = sorted((other for other in later if other.created > one.created), key=lambda other: other.created)
        lost = dict(self.storage.data[f"@{handle}"])
        super().delete_snapshot(handle, secrets)
        if later:
            self.storage.data[f"@{later[0].handle}"].update(lost)


class TakesCopies(MemoryBackend):
    """A copy loses what it shares with a snapshot that is deleted, if that is not the newest one."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        created = self.get_snapshot(handle).created
        newer = any(one.created > created for one in self.storage.snapshots.values())
        super().delete_snapshot(handle, secrets)
        for volume in self.storage.volumes.values() if newer else ():
            if volume.stamp.source and volume.stamp.source.handle == handle:
                self.storage.data[volume.handle].clear()


class LosesTheLast(MemoryBackend):
    """The merge of a volume's last layer goes wrong: the volume loses what it has written since."""

    lost = "volume"

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        volume = self.get_snapshot(handle).source
        super().delete_snapshot(handle, secrets)
        if any(one.source == volume for one in self.storage.snapshots.values()):
            return
        for other in self.storage.volumes.values() if self.lost == "copies" else ():
            if other.stamp.source:
                self.storage.data[other.handle].clear()
        if self.lost == "volume":
            self.storage.data[volume].clear()


class LosesCopiesWithTheLast(LosesTheLast):
    """The merge of the last layer goes wrong: the copies lose what they have written since."""

    lost = "copies"


class KeepsTheFirst(LayeredStorage):
    """Leaves the layer of a snapshot that is deleted after a later one."""

    def merge(self, snapshot: str) -> None:
        layer = next((name for name, owner in self.layers.items() if owner[1] == snapshot), "")
        volume = self.layers.get(layer, ("",))[0]
        numbers = [int(name.rpartition(".")[2]) for name, owner in self.layers.items() if owner[0] == volume]
        if layer and len(numbers) > 2 and int(layer.rpartition(".")[2]) > min(numbers):
            self.layers[layer] = (volume, "nobody")
        else:
            super().merge(snapshot)


class PilesUp(LayeredStorage):
    """Merges no layer before the volume is deleted."""

    def merge(self, snapshot: str) -> None:
        for name, (volume, owner) in list(self.layers.items()):
            if owner == snapshot:
                self.layers[name] = (volume, "merged later")

    def remove(self, condition: Callable[[str, str], bool]) -> None:
        super().remove(condition)
        active = {volume for volume, owner in self.layers.values() if not owner}
        gone = {name for name, (volume, owner) in self.layers.items() if owner == "merged later"}
        self.layers = {k: v for k, v in self.layers.items() if k not in gone or v[0] in active}


class ClonesPileUp(MemoryBackend):
    """Takes a snapshot of its own for each clone, and forgets it."""

    def clone_volume(self, request: VolumeRequest) -> Volume:
        made = super().clone_volume(request)
        self.storage.data[f"base-of-{made.handle}"] = {}
        return made


class Chained(MemoryBackend):
    """Deletes no snapshot that a volume was made from. Correct."""

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self.get_snapshot(handle)
        copies = [one.handle for one in self.storage.volumes.values() if one.stamp.source]
        if copies and any(self.get_volume(one).stamp.source.handle == handle for one in copies):  # type: ignore[union-attr]
            raise InUse(f"snapshot {handle!r} has copies")
        super().delete_snapshot(handle, secrets)


BROKEN = [
    (
        chains.the_snapshots_of_a_chain_are_deleted_in_any_order,
        TakesTheNext,
        "snapshots 1 deleted, then snapshot 2: the first block differs",
    ),
    (
        chains.the_snapshots_of_a_chain_are_deleted_in_any_order,
        LosesTheLast,
        "snapshots 1, 2, 0, 3 deleted, then the volume: the first block differs",
    ),
    (
        chains.the_snapshots_of_a_chain_are_deleted_in_any_order,
        LosesCopiesWithTheLast,
        "snapshots 1, 2, 0, 3 deleted, then a copy: the first block differs",
    ),
    (chains.the_snapshots_of_a_chain_are_deleted_in_any_order, TakesCopies, "then a copy: the first block differs"),
    (chains.the_snapshots_of_a_chain_are_deleted_in_any_order, layered(KeepsTheFirst), "remaining: layer"),
    (chains.snapshots_that_come_and_go_leave_nothing_with_their_volume, layered(PilesUp), "5 more resources: layer"),
    (chains.clones_that_come_and_go_leave_nothing_with_their_source, ClonesPileUp, "5 more resources: data base-of-"),
]


@pytest.mark.parametrize(("check", "backend", "words"), BROKEN)
def test_the_check_sees_it(fails: Any, check: Any, backend: Any, words: str) -> None:
    fails(check, backend, words)


def test_a_snapshot_may_be_kept_as_long_as_it_has_copies(judged: Callable[..., Outcome]) -> None:
    outcome = judged(chains.the_snapshots_of_a_chain_are_deleted_in_any_order, Chained)

    assert outcome.state is CheckState.PASSED, outcome.text


class Slow(MemoryBackend):
    """Needs a moment for each snapshot. Correct."""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        time.sleep(0.01)
        return super().create_snapshot(request)


@pytest.mark.parametrize(("complete", "tried"), [(False, 1), (True, 24)])
def test_slow_storage_deletes_in_one_order_unless_all_are_requested(
    judged: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, complete: bool, tried: int
) -> None:
    monkeypatch.setattr(chains, "ORDERS_SECONDS", 0.05)

    outcome = judged(
        chains.the_snapshots_of_a_chain_are_deleted_in_any_order, lambda: memory.storage(Slow, complete=complete)
    )

    assert outcome.state is CheckState.PASSED, outcome.text
    assert outcome.notes == (f"orders tried: {tried} of 24",)


LAYERED = ("chains", "snapshots", "sources", "groups", "crashes", "after_crash", "faults", "races", "expand", "records")


@pytest.mark.parametrize("one", [one for one in CHECKS.values() if one.group in LAYERED], ids=lambda one: one.name)
def test_a_storage_where_a_snapshot_adds_a_layer_to_its_source_passes(judged: Callable[..., Outcome], one: Any) -> None:
    outcome = judged(one.body, layered())

    assert outcome.state is not CheckState.FAILED, outcome.text
