"""As many RPCs at once as the sidecars send to a cluster are served, although each node has a share of the threads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from csi_multi.rpc import server
from tests.cluster.conftest import LocalMemory, place

Code = grpc.StatusCode
WORKERS = 10  # the chart's --capacity-threads, and the workers of attacher, resizer, snapshotter and health monitor
CALLS = 200
NODES = ("node-1", "node-2")


class Working(LocalMemory):
    """A storage that takes a moment to read."""

    def capacity(self, request: Any) -> Any:
        time.sleep(0.005)
        return super().capacity(request)

    def get_volume(self, handle: str) -> Any:
        time.sleep(0.005)
        return super().get_volume(handle)

    def get_snapshot(self, handle: str) -> Any:
        time.sleep(0.005)
        return super().get_snapshot(handle)


def code_of(call: Callable[[int], Any], number: int) -> Code:
    try:
        call(number)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


def test_the_readers_of_all_sidecars_at_once_are_served_by_two_nodes(rig: Any) -> None:
    rig.kind = Working
    for node in NODES:
        rig.start_node(node)
    client = rig.start_controller()
    for node in NODES:
        volume = rig.create(f"v-{node}", nodes=[node]).volume_id
        client.CreateSnapshot(name=f"s-{node}", source_volume_id=volume)
    calls: dict[str, Callable[[int], Any]] = {
        "GetCapacity": lambda n: client.GetCapacity(
            parameters={"backend": "disk"}, accessible_topology=place(NODES[n % 2])
        ),
        "ListSnapshots": lambda n: client.ListSnapshots(snapshot_id=f"disk/{NODES[n % 2]}/s-{NODES[n % 2]}"),
        "ControllerGetVolumeHealth": lambda n: client.ControllerGetVolumeHealth(
            volume_id=f"disk/{NODES[n % 2]}/v-{NODES[n % 2]}"
        ),
    }
    with ThreadPoolExecutor(WORKERS * len(calls)) as pool:
        ends = {rpc: [pool.submit(code_of, call, number) for number in range(CALLS)] for rpc, call in calls.items()}

    assert {rpc: Counter(one.result() for one in many) for rpc, many in ends.items()} == {
        rpc: {Code.OK: CALLS} for rpc in calls
    }


def test_a_node_that_hangs_does_not_take_the_threads_of_another_ones_burst(rig: Any) -> None:
    go = threading.Event()

    class Hanging(Working):
        def get_volume(self, handle: str) -> Any:
            go.wait(20) if handle.startswith("node-1/") else None
            return super().get_volume(handle)

    rig.kind = Hanging
    for node in NODES:
        rig.start_node(node)
    client = rig.start_controller()
    for node in NODES:
        rig.create("v", nodes=[node])

    def show(node: str) -> Callable[[int], Any]:
        return lambda _number: client.ControllerGetVolume(volume_id=f"disk/{node}/v", timeout=15)

    with ThreadPoolExecutor(80) as pool:
        hung = [pool.submit(code_of, show("node-1"), number) for number in range(40)]
        ends = Counter(pool.map(lambda number: code_of(show("node-2"), number), range(40)))
        go.set()

    assert ends == {Code.OK: 40}
    assert all(one.done() for one in hung)


def test_a_connection_that_the_node_renews_costs_no_rpc(rig: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "NETWORK_OPTIONS", (("grpc.max_connection_age_ms", 100),))
    rig.start_node("node-1")
    client = rig.start_controller()
    volume = rig.create("v", nodes=["node-1"]).volume_id
    end = time.monotonic() + 1

    with ThreadPoolExecutor(4) as pool:
        ends = Counter(pool.map(lambda _: until(end, client, volume), range(4)))

    assert set().union(*ends) == {Code.OK}
    assert rig.nodes.unreachable() == {}


def until(end: float, client: Any, volume: str) -> frozenset[Code]:
    """Call until then; return how the calls ended."""
    ends = set()
    while time.monotonic() < end:
        ends.add(code_of(lambda _: client.ControllerGetVolume(volume_id=volume), 0))
    return frozenset(ends)
