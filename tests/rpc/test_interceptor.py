"""One hung operation costs one thread and one lock; Probe always answers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import (
    CapacityReport,
    CapacityRequest,
    ExpandRequest,
    Expansion,
    ModifyRequest,
    Volume,
    VolumeRequest,
)
from csi_multi.loading import admission
from csi_multi.rpc.client import Client

Code = grpc.StatusCode
WORKERS = 16
WORKING = WORKERS * 5 // 8
READING = WORKERS - WORKING


class Hanging(MemoryBackend):
    """Hangs wherever a name begins with "hang", until a test lets go."""

    def __init__(self, *words: Any) -> None:
        super().__init__(*words)
        self.inside = threading.Semaphore(0)
        self.go = threading.Event()

    def hang(self) -> None:
        self.inside.release()
        self.go.wait(30)

    def create_volume(self, request: VolumeRequest) -> Volume:
        if request.name.startswith("hang"):
            self.hang()
        return super().create_volume(request)

    def delete_volume(self, handle: str, secrets: Any) -> None:
        if handle.startswith("hang"):
            self.hang()
        super().delete_volume(handle, secrets)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return self.create_volume(request)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        self.hang()
        return super().expand_volume(request)

    def modify_volume(self, request: ModifyRequest) -> None:
        self.hang()
        super().modify_volume(request)

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        self.hang()
        return super().capacity(request)


@pytest.fixture
def hanging(serve: Any, make: Any, behind: Any) -> Iterator[Any]:
    served = serve(make("fast", Hanging), workers=WORKERS)
    yield served
    served.backend("fast").go.set()


@pytest.fixture
def behind() -> Iterator[Callable[..., Future[Any]]]:
    """Call in the background."""
    with ThreadPoolExecutor(64) as pool:
        yield pool.submit


@pytest.fixture
def hang(hanging: Any, behind: Any, creation: Any) -> Callable[[int], list[Future[Any]]]:
    """Start so many creations that hang, and return when all are inside the backend."""

    def start(count: int) -> list[Future[Any]]:
        calls = [behind(hanging.client.CreateVolume, creation(f"hang-{number}")) for number in range(count)]
        for _ in range(count):
            assert hanging.backend("fast").inside.acquire(timeout=10)
        return calls

    return start


def answers_at_once(client: Client) -> bool:
    began = time.monotonic()
    client.Probe(timeout=5)
    client.GetPluginInfo(timeout=5)
    client.GetPluginCapabilities(timeout=5)
    client.ControllerGetCapabilities(timeout=5)
    client.NodeGetCapabilities(timeout=5)
    return time.monotonic() - began < 10  # what hangs does so for longer


def test_a_retry_of_a_hung_operation_is_told_who_holds_it(hanging: Any, hang: Any, creation: Any, refused: Any) -> None:
    (call,) = hang(1)
    time.sleep(0.15)  # so that the age is not 0.0

    refusal = refused(hanging.client.CreateVolume, creation("hang-0"))

    assert refusal.code is Code.ABORTED
    assert re.match(r"CreateVolume has held new volume 'hang-0' for \d+\.\d s", refusal.text)
    assert " for 0.0 s" not in refusal.text
    assert answers_at_once(hanging.client)
    assert hanging.client.CreateVolume(creation("other")).volume.volume_id == "fast/other"
    hanging.backend("fast").go.set()
    assert call.result(10).volume.volume_id == "fast/hang-0"
    assert hanging.client.CreateVolume(creation("hang-0")).volume.volume_id == "fast/hang-0"


def test_when_all_hands_hang_more_work_is_refused_at_once(
    hanging: Any, hang: Any, creation: Any, refused: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.2)
    calls = hang(WORKING)
    time.sleep(0.3)
    began = time.monotonic()

    refusal = refused(hanging.client.CreateVolume, creation("one-more"))

    assert refusal.code is Code.UNAVAILABLE
    assert "busy" in refusal.text
    assert time.monotonic() - began < 10
    assert answers_at_once(hanging.client)
    hanging.backend("fast").go.set()
    assert len({call.result(10).volume.volume_id for call in calls}) == WORKING
    assert hanging.client.CreateVolume(creation("one-more")).volume.volume_id


def test_hung_readers_leave_workers_and_probe_alone(
    hanging: Any, behind: Any, creation: Any, refused: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.2)
    fields = {"parameters": {"backend": "fast"}}
    calls = [behind(lambda: hanging.client.GetCapacity(**fields)) for _ in range(READING)]
    for _ in calls:
        assert hanging.backend("fast").inside.acquire(timeout=10)

    assert refused(hanging.client.GetCapacity, **fields).code is Code.UNAVAILABLE
    assert answers_at_once(hanging.client)
    assert hanging.client.CreateVolume(creation("v")).volume.volume_id == "fast/v"
    hanging.backend("fast").go.set()
    assert all(call.result(10).available_capacity for call in calls)


def test_a_caller_that_stops_waiting_does_not_stop_the_work(hanging: Any, creation: Any, refused: Any) -> None:
    """The retry is refused while it runs, then finds the result."""
    backend, create = hanging.backend("fast"), hanging.client.CreateVolume
    assert refused(lambda *_: create(creation("hang"), timeout=0.3)).code is Code.DEADLINE_EXCEEDED
    while not backend.inside.acquire(timeout=1):  # on a busy machine the caller may leave before the driver has read
        refused(lambda *_: create(creation("hang"), timeout=1))
    assert refused(create, creation("hang")).code is Code.ABORTED

    backend.go.set()

    end = time.monotonic() + 60
    while True:
        try:
            assert create(creation("hang")).volume.volume_id == "fast/hang"
            break
        except grpc.RpcError as error:
            assert error.code() is Code.ABORTED  # noqa: PT017
            assert time.monotonic() < end
            time.sleep(0.01)
    assert list(hanging.storages["fast"].volumes) == ["hang"]


def test_a_source_that_is_being_copied_is_shared_and_not_deleted(
    hanging: Any, behind: Any, creation: Any, refused: Any
) -> None:
    client = hanging.client
    client.CreateVolume(creation("v"))
    client.CreateSnapshot(name="s", source_volume_id="fast/v")
    source = {"snapshot": {"snapshot_id": "fast/s"}}
    copies = [
        behind(client.CreateVolume, creation(f"hang-{number}", volume_content_source=source)) for number in (1, 2)
    ]
    for _ in copies:
        assert hanging.backend("fast").inside.acquire(timeout=10)

    refusal = refused(client.DeleteSnapshot, snapshot_id="fast/s")

    assert refusal.code is Code.ABORTED
    assert "CreateVolume has held snapshot 'fast/s'" in refusal.text
    hanging.backend("fast").go.set()
    assert all(copy.result(10) for copy in copies)
    client.DeleteSnapshot(snapshot_id="fast/s")


def test_a_group_is_not_deleted_while_a_member_is_being_copied(
    hanging: Any, behind: Any, creation: Any, refused: Any
) -> None:
    client = hanging.client
    client.CreateVolume(creation("v"))
    client.CreateVolumeGroupSnapshot(name="g", source_volume_ids=["fast/v"])
    copy = behind(
        client.CreateVolume, creation("hang", volume_content_source={"snapshot": {"snapshot_id": "fast/g-0"}})
    )
    assert hanging.backend("fast").inside.acquire(timeout=10)

    refusal = refused(client.DeleteVolumeGroupSnapshot, group_snapshot_id="fast/g", snapshot_ids=["fast/g-0"])

    assert refusal.code is Code.ABORTED
    hanging.backend("fast").go.set()
    assert copy.result(10)


@pytest.mark.parametrize(
    "rpc", ["ControllerExpandVolume", "ControllerModifyVolume", "ControllerPublishVolume", "CreateSnapshot"]
)
def test_a_volume_that_is_being_deleted_is_left_alone(
    rpc: str, hanging: Any, behind: Any, creation: Any, good: Any, refused: Any
) -> None:
    hanging.backend("fast").go.set()
    hanging.client.CreateVolume(creation("hang"))
    hanging.backend("fast").go.clear()
    while hanging.backend("fast").inside.acquire(blocking=False):
        pass
    deletion = behind(lambda: hanging.client.DeleteVolume(volume_id="fast/hang"))
    assert hanging.backend("fast").inside.acquire(timeout=10)
    field = "source_volume_id" if rpc == "CreateSnapshot" else "volume_id"

    refusal = refused(getattr(hanging.client, rpc), good(rpc, **{field: "fast/hang"}))

    assert refusal.code is Code.ABORTED
    assert "DeleteVolume has held volume 'fast/hang'" in refusal.text
    hanging.backend("fast").go.set()
    deletion.result(10)


def test_an_rpc_is_one_line_in_and_one_line_out(
    serve: Any, make: Any, creation: Any, refused: Any, stream: Any
) -> None:
    client = serve(make("fast")).client
    client.CreateVolume(creation("v"))
    refused(client.CreateVolume, creation("w", parameters={"odd": "x"}))

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    rows = [line for line in lines if line["message"].startswith("CreateVolume")]

    assert [line["message"] for line in rows] == ["CreateVolume begins", "CreateVolume ends"] * 2
    assert [line.get("code") for line in rows] == [None, "OK", None, "INVALID_ARGUMENT"]
    assert rows[0]["request"]["name"] == "v"
    assert "'odd'" in rows[3]["error"]
    assert all(line["ms"] >= 0 for line in rows if "ms" in line)


def test_polled_rpcs_are_quiet_until_they_fail(
    serve: Any, make: Any, refused: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = serve(make("fast")).client
    client.Probe()
    client.ListVolumes()
    assert not caplog.records

    refused(client.ListVolumes, starting_token="bad")

    assert [record.getMessage() for record in caplog.records] == ["ListVolumes ends"]


def test_the_deadline_of_the_caller_reaches_the_backend(serve: Any, make: Any, creation: Any) -> None:
    seen = []

    class Timed(MemoryBackend):
        def create_volume(self, request: VolumeRequest) -> Volume:
            seen.append(request.deadline)
            return super().create_volume(request)

    client = serve(make("fast", Timed)).client
    before = time.monotonic()
    client.CreateVolume(creation("v"), timeout=15)

    assert seen[0] == pytest.approx(before + 15, abs=2)


def test_bytes_that_are_no_message_are_answered(both: Any) -> None:
    with grpc.insecure_channel(both.endpoint) as channel:
        for body in (b"\xff\xff\xff", b"\x0a\x02\xff\xfe"):
            with pytest.raises(grpc.RpcError) as found:
                channel.unary_unary("/csi.v1.Controller/DeleteVolume")(body, timeout=10)
            assert found.value.code() is Code.INTERNAL  # as every gRPC server does
            assert found.value.details()
        with pytest.raises(grpc.RpcError) as found:
            channel.unary_unary("/csi.v1.Controller/NoSuchRpc")(b"", timeout=10)
        assert found.value.code() is Code.UNIMPLEMENTED


GROWTH = ("ControllerExpandVolume", {"capacity_range": {"required_bytes": 1 << 30}})
CHANGE = ("ControllerModifyVolume", {"mutable_parameters": {"iops": "10"}})
COPY = ("CreateSnapshot", {"name": "s", "source_volume_id": "fast/v"})
DELETION = ("DeleteVolume", {})


def test_a_volume_is_expanded_and_modified_at_once(hanging: Any, behind: Any, creation: Any) -> None:
    client = hanging.client
    client.CreateVolume(creation("v"))
    calls = [
        behind(lambda rpc=rpc, fields=fields: getattr(client, rpc)(volume_id="fast/v", **fields))
        for rpc, fields in (GROWTH, CHANGE)
    ]

    for _ in calls:
        assert hanging.backend("fast").inside.acquire(timeout=10)

    hanging.backend("fast").go.set()
    assert calls[0].result(10).capacity_bytes == 1 << 30
    assert calls[1].result(10)


@pytest.mark.parametrize(
    ("first", "second"),
    [(GROWTH, GROWTH), (CHANGE, CHANGE), *((one, other) for one in (GROWTH, CHANGE) for other in (COPY, DELETION))],
)
def test_a_volume_that_changes_is_neither_changed_again_nor_copied_nor_deleted(
    first: Any, second: Any, hanging: Any, behind: Any, creation: Any, refused: Any
) -> None:
    client = hanging.client
    client.CreateVolume(creation("v"))
    call = behind(lambda: getattr(client, first[0])(volume_id="fast/v", **first[1]))
    assert hanging.backend("fast").inside.acquire(timeout=10)

    fields = second[1] if second is COPY else {"volume_id": "fast/v", **second[1]}
    refusal = refused(getattr(client, second[0]), **fields)

    assert refusal.code is Code.ABORTED
    assert f"{first[0]} has held volume" in refusal.text
    hanging.backend("fast").go.set()
    call.result(10)
