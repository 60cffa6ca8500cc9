"""A node that is down costs nobody's time, and is found again by itself."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import grpc

Code = grpc.StatusCode


def test_a_node_that_is_down_is_unavailable_and_found_again_when_it_is_back(cluster: Any, refused: Any) -> None:
    volume = cluster.create("v", nodes=["node-1"]).volume_id
    cluster.stop_node("node-1")

    refusals = [refused(cluster.client.ControllerGetVolume, volume_id=volume) for _ in range(3)]

    assert {one.code for one in refusals} == {Code.UNAVAILABLE}
    assert f"node 'node-1' (127.0.0.1:{cluster.machines['node-1'].port}) has been unreachable since" in refusals[0].text
    assert cluster.nodes.unreachable().keys() == {"node-1"}
    cluster.start_node("node-1")
    cluster.start_controller()
    assert cluster.client.ControllerGetVolume(volume_id=volume).volume.volume_id == volume


def test_other_nodes_are_not_held_up(cluster: Any) -> None:
    cluster.stop_node("node-1")

    assert cluster.create("v", nodes=["node-2"])


def test_what_runs_when_a_node_goes_away_is_unavailable_and_found_by_the_retry(cluster: Any, refused: Any) -> None:
    machine = cluster.machines["node-1"]
    make = machine.backend.create_volume
    seen = threading.Event()

    def die(request: Any) -> Any:
        made = make(request)
        machine.server.stop(None)  # the answer is lost
        assert seen.wait(20)
        return made

    machine.backend.create_volume = die
    refusal = refused(cluster.attempt, name="v", nodes=["node-1"])
    seen.set()

    assert (refusal.code, machine.volumes) == (Code.UNAVAILABLE, ["v"])
    machine.server.stop(None).wait()
    cluster.start_node("node-1")
    cluster.start_controller()
    assert cluster.create("v", nodes=["node-1"]).volume_id == "disk/node-1/v"


def test_calls_that_hang_on_one_node_leave_room_for_the_others(cluster: Any, refused: Any) -> None:
    go, waiting = threading.Event(), threading.Semaphore(0)

    def hang(_handle: str, _secrets: Any) -> Any:
        waiting.release()
        go.wait(20)

    cluster.machines["node-1"].backend.delete_volume = hang
    threads = [
        threading.Thread(target=lambda number=number: _quietly(cluster.client.DeleteVolume, f"disk/node-1/v{number}"))
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    assert waiting.acquire(timeout=20)
    try:
        assert cluster.create("v", nodes=["node-2"])
        assert cluster.client.Probe().ready.value
    finally:
        go.set()
        for thread in threads:
            thread.join(20)


def _quietly(method: Any, volume: str) -> None:
    with suppress(grpc.RpcError):  # what is above the node's share is refused
        method(volume_id=volume)
