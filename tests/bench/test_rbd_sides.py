"""The drivers beside the rbd backend get the same work; nothing is measured here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from bench import cases_peer_rbd, rbd_sides
from bench.rbd_sides import Side
from csi_multi._proto import csi_pb2 as pb


class Refused(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class Cluster:
    """A client of a driver that keeps its volumes and snapshots in memory. `errors` are raised first."""

    def __init__(self) -> None:
        self.volumes: dict[str, int] = {}
        self.snapshots: set[str] = set()
        self.secrets: list[object] = []
        self.errors: list[Exception] = []

    def CreateVolume(self, *, name: str, capacity_range: Any, volume_content_source: Any, **other: Any) -> Any:
        self._begin(other)
        match volume_content_source:
            case {"snapshot": {"snapshot_id": id}}:
                assert id in self.snapshots
            case {"volume": {"volume_id": id}}:
                assert id in self.volumes
        self.volumes[f"id-{name}"] = capacity_range["required_bytes"]
        return pb.CreateVolumeResponse(volume=pb.Volume(volume_id=f"id-{name}"))

    def ControllerExpandVolume(self, *, volume_id: str, capacity_range: Any, **other: Any) -> None:
        self._begin(other)
        assert capacity_range["required_bytes"] > self.volumes[volume_id]
        self.volumes[volume_id] = capacity_range["required_bytes"]

    def CreateSnapshot(self, *, name: str, source_volume_id: str, **other: Any) -> Any:
        self._begin(other)
        assert source_volume_id in self.volumes
        self.snapshots.add(f"id-{name}")
        return pb.CreateSnapshotResponse(snapshot=pb.Snapshot(snapshot_id=f"id-{name}"))

    def DeleteSnapshot(self, *, snapshot_id: str, **other: Any) -> None:
        self._begin(other)
        self.snapshots.remove(snapshot_id)

    def DeleteVolume(self, *, volume_id: str, **other: Any) -> None:
        self._begin(other)
        del self.volumes[volume_id]

    def _begin(self, other: dict[str, Any]) -> None:
        self.secrets.append(other["secrets"])
        if self.errors:
            raise self.errors.pop()


class Process:
    """A server that uses a second of the processor for each look at it, up to a number."""

    def __init__(self, most: int = 0) -> None:
        self._looks = itertools.chain(range(most), itertools.repeat(most))

    def cpu(self, *, commands: bool = False) -> float:
        assert commands
        return next(self._looks)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


@pytest.fixture
def side() -> Callable[..., Side]:
    def make(most: int = 0) -> Side:
        return Side(Process(most), Cluster(), {"pool": "k8s"}, secrets={"userID": "csi"})  # type: ignore[arg-type]

    return make


def test_both_drivers_do_every_step_and_nothing_is_left(side: Callable[..., Side]) -> None:
    sides = side(), side()

    took, used = cases_peer_rbd._rounds(sides, "many", 4, 2)

    assert list(took) == list(used) == list(cases_peer_rbd.STEPS)
    assert {len(figures) for both in took.values() for figures in both} == {2}
    for one in sides:
        assert (one.caller.volumes, one.caller.snapshots, one.made) == ({}, set(), {})
        assert len(one.caller.secrets) == 3 * 32 * 9
        assert set(map(str, one.caller.secrets)) == {"{'userID': 'csi'}"}


def test_a_call_that_is_refused_for_now_is_sent_again_and_counted(side: Callable[..., Side]) -> None:
    one = side()
    one.caller.errors += [Refused(grpc.StatusCode.ABORTED), Refused(grpc.StatusCode.UNAVAILABLE)]

    one.create("volume")

    assert (one.refused, list(one.caller.volumes)) == (2, ["id-volume"])


def test_a_call_that_fails_ends_the_measurement(side: Callable[..., Side]) -> None:
    one = side()
    one.caller.errors.append(Refused(grpc.StatusCode.INTERNAL))

    with pytest.raises(grpc.RpcError):
        rbd_sides.timed(one, one.create, ["volume"], 1)


def test_a_peer_may_say_internal_of_what_it_still_works_on(side: Callable[..., Side]) -> None:
    one = side()
    one.again = rbd_sides.THEIRS_AGAIN
    one.caller.errors.append(Refused(grpc.StatusCode.INTERNAL))

    one.create("volume")

    assert (one.refused, list(one.caller.volumes)) == (1, ["id-volume"])


def test_a_call_that_is_refused_for_ever_ends_the_measurement(
    side: Callable[..., Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = side()
    one.caller.errors += [Refused(grpc.StatusCode.ABORTED)] * 3
    monkeypatch.setattr("time.monotonic", itertools.count(step=400).__next__)

    with pytest.raises(grpc.RpcError):
        one.create("volume")


def test_the_processor_time_contains_what_follows_the_answer(side: Callable[..., Side]) -> None:
    one = side(most=7)

    _, used = rbd_sides.timed(one, one.create, ["volume"], 1)

    assert used == 7


def test_a_peer_that_used_no_processor_has_no_ratio(side: Callable[..., Side]) -> None:
    row = cases_peer_rbd._sums("idle", "s", ([1.0, 2.0], [0.0, 0.0]), 1)

    assert (row.ours, row.bare, row.ratio) == (1.5, 0.0, None)
