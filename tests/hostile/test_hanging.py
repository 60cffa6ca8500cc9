"""An instance that hangs holds only its share of the threads, errors name it, and the others are served."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import BlockMap, Extent, NodeFacts, Unavailable
from csi_multi.loading import admission, registry
from csi_multi.loading.admission import AdmissionLimit, RunningRpc, SlotPool
from csi_multi.loading.registry import Registry

Code = grpc.StatusCode
WORKERS = 16
WORKING = WORKERS * 5 // 8


def inside(served: Any, count: int) -> None:
    for _ in range(count):
        assert served.backend("bad").inside.acquire(timeout=10)


def test_hung_creations_are_refused_above_their_share_and_the_other_instance_works_on(
    hanging: Any, behind: Any, wanted: Any, refused: Any, serves: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.2)
    served = hanging("create_volume", workers=WORKERS)
    share = WORKING // 2
    calls = [behind(lambda n=n: served.client.CreateVolume(**wanted(f"v{n}"))) for n in range(share)]
    inside(served, share)

    for number in range(3):
        refusal = refused(served.client.CreateVolume, **wanted(f"more{number}"))
        assert refusal.code is Code.UNAVAILABLE
        assert f"backend 'bad' has {share} running RPCs, the oldest of them CreateVolume for" in refusal.text
    serves(served.client)
    served.backend("bad").go.set()
    assert len({call.result(10).volume.volume_id for call in calls}) == share
    serves(served.client, "bad")


def test_an_instance_that_is_alone_may_have_all_threads(
    serve: Any, make: Any, behind: Any, wanted: Any, hanging: Any
) -> None:
    kind = type(hanging().backend("bad"))
    served = serve(make("bad", kind), workers=WORKERS)
    served.backend("bad").hangs = ("create_volume",)
    calls = [behind(lambda n=n: served.client.CreateVolume(**wanted(f"v{n}"))) for n in range(WORKING)]

    inside(served, WORKING)

    served.backend("bad").go.set()
    assert all(call.result(10) for call in calls)


@pytest.mark.parametrize("workers", [8, WORKERS])
def test_hung_readers_of_one_instance_leave_room_for_the_others_readers(
    workers: int, hanging: Any, behind: Any, refused: Any, serves: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.2)
    served = hanging("get_volume", workers=workers)
    share = (workers * 3 // 8 + 1) // 2
    calls = [behind(served.client.ControllerGetVolume, volume_id="bad/absent") for _ in range(share)]
    inside(served, share)

    refusal = refused(served.client.ControllerGetVolume, volume_id="bad/absent")

    assert refusal.code is Code.UNAVAILABLE
    assert f"backend 'bad' has {share} running RPCs, the oldest of them ControllerGetVolume for" in refusal.text
    serves(served.client)
    served.backend("bad").go.set()
    assert {call.exception(10).code() for call in calls} == {Code.NOT_FOUND}


def test_a_stream_holds_its_place_until_its_end_or_until_the_caller_goes(
    serve: Any, make: Any, wanted: Any, refused: Any, serves: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.5)
    go = threading.Event()

    class Endless(MemoryBackend):
        def allocated_blocks(self, handle: str, offset: int, secrets: Any) -> BlockMap:
            def extents() -> Iterator[Extent]:
                for number in range(1 << 18):
                    go.wait(20) if number else None
                    yield Extent(offset=number * 4096, length=4096)

            return BlockMap(size=1 << 30, extents=extents())

    served = serve(make("bad", Endless), make("good"), workers=8)  # two streams, then three creations
    served.client.CreateVolume(**wanted("v"))
    served.client.CreateSnapshot(name="s", source_volume_id="bad/v")
    fields = {"snapshot_id": "bad/s", "max_results": 1}
    streams = [served.client.GetMetadataAllocated(**fields) for _ in range(3)]
    for stream in streams:
        next(stream)

    refusal = refused(served.client.GetMetadataAllocated, **fields)

    assert refusal.code is Code.UNAVAILABLE
    assert "backend 'bad' has 3 running RPCs, the oldest of them GetMetadataAllocated" in refusal.text
    serves(served.client)
    for stream in streams:
        stream.cancel()
    go.set()
    until(lambda: not served.registry.running_rpcs())


@pytest.mark.parametrize(("rpc", "method"), [("ListVolumes", "list_volumes"), ("GetCapacity", "capacity")])
def test_an_answer_over_all_instances_is_awaited_once_and_then_refused_with_the_name_of_the_one_that_hangs(
    rpc: str, method: str, hanging: Any, behind: Any, refused: Any, serves: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.05)
    served = hanging(method, workers=64)  # enough threads
    call = behind(getattr(served.client, rpc))
    inside(served, 1)
    time.sleep(0.1)

    refusal = refused(getattr(served.client, rpc))

    assert refusal.code is Code.UNAVAILABLE
    assert f"backend 'bad' has 1 running RPC, the oldest of them {rpc} for" in refusal.text
    serves(served.client)
    served.backend("bad").go.set()
    call.result(10)
    getattr(served.client, rpc)()


def test_a_node_is_not_described_without_an_instance_that_hangs(
    serve: Any, make: Any, behind: Any, refused: Any, serves: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission, "HANGING_AFTER", 0.05)
    go, came = threading.Event(), threading.Event()

    class Slow(MemoryBackend, NodeFacts):
        def node_fact(self) -> str:
            came.set()
            go.wait(20)
            return "i-0abc"

    served = serve(make("bad", Slow), make("good"))
    call = behind(served.client.NodeGetInfo)
    assert came.wait(10)
    time.sleep(0.1)

    refusal = refused(served.client.NodeGetInfo)

    assert (refusal.code, "'bad'" in refusal.text) == (Code.UNAVAILABLE, True)
    serves(served.client)
    go.set()
    assert call.result(10).node_id == "node-1;bad=i-0abc"


def test_a_listing_that_waits_for_one_instance_holds_no_place_in_those_it_has_asked(
    serve: Any, make: Any, hanging: Any, behind: Any, serves: Any
) -> None:
    kind = type(hanging().backend("bad"))
    served = serve(make("asked"), make("bad", kind), make("good"), workers=8)
    served.backend("bad").hangs = ("list_volumes",)
    call = behind(served.client.ListVolumes)
    inside(served, 1)

    assert [line.rpartition(" ")[2] for line in served.registry.running_rpcs()] == ["bad"]
    serves(served.client, "asked")
    served.backend("bad").go.set()
    call.result(10)


def test_every_instance_that_hangs_leaves_room_for_one_more() -> None:
    slots, held = SlotPool(10), []
    for name in "abcd":
        limit, count = AdmissionLimit(name, unshared=False), 0
        with suppress(Unavailable):
            while True:
                rpc = RunningRpc("CreateVolume", slots, all_instances=False)
                rpc.begin()
                rpc.enter(limit)
                held.append(rpc)
                count += 1
        assert count >= 1, name

    assert len(held) == 10


def test_a_call_of_a_backend_on_itself_counts_once_and_is_not_judged(
    serve: Any, make: Any, wanted: Any, errors: Any
) -> None:
    class Selfish(MemoryBackend):
        def create_volume(self, request: Any) -> Any:
            assert self.get_volume("secretly odd") == 1
            return super().create_volume(request)

        def get_volume(self, handle: str) -> Any:
            return 1 if handle == "secretly odd" else super().get_volume(handle)

    served = serve(make("bad", Selfish), make("good"), workers=8)

    assert served.client.CreateVolume(**wanted("v")).volume.volume_id == "bad/v"
    assert not served.registry.running_rpcs()
    assert not errors()


# Checks


def until(happens: Any) -> None:
    end = time.monotonic() + 30
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize(("method", "what"), [("check", "check"), ("resume", "resume")])
def test_an_instance_whose_check_does_not_come_back_counts_as_down_until_it_does(
    method: str, what: str, make: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(registry, "CHECK_LIMIT", 0.05)
    go = threading.Event()
    kind = type("Late", (MemoryBackend,), {method: lambda _: go.wait(20) and None})
    instances = Registry([make("bad", kind), make("good")])
    instances.start(0.01)

    until(lambda: "bad" in instances.degraded())

    assert instances.degraded() == {"bad": f"hanging: {what} has not returned for more than 0.05 s"}
    go.set()
    until(lambda: not instances.degraded())
    instances.close()


def test_closing_does_not_wait_for_an_instance_that_hangs(make: Any, monkeypatch: Any, errors: Any) -> None:
    monkeypatch.setattr(registry, "CLOSE_LIMIT", 0.1)
    go, closed = threading.Event(), []

    class Stuck(MemoryBackend):
        def close(self) -> None:
            go.wait(20)

    class Good(MemoryBackend):
        def close(self) -> None:
            closed.append(self.setting.instance)

    began = time.monotonic()
    Registry([make("bad", Stuck), make("good", Good)]).close()

    assert time.monotonic() - began < 15  # it would hang for 20
    assert closed == ["good"]
    assert ["backend bad: close did not return" in line["message"] for line in errors()] == [True]
    go.set()
