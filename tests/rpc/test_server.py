"""The threads of a server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.config.settings import Driver
from csi_multi.contract import Unavailable, Volume
from csi_multi.host.command import LocalHost
from csi_multi.loading.registry import Registry
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.interceptor import SharedRpcState
from csi_multi.rpc.server import build_server, workers_of

WORKERS = 8
ERROR = Unavailable("the storage does not answer")  # its traceback, and what that refers to, stay


class Failing(MemoryBackend):
    def get_volume(self, handle: str) -> Volume:
        raise ERROR


def test_the_threads_of_a_server_end_with_it_also_while_an_error_refers_to_them(make: Any, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    driver = Driver(name="multi.csi.example.com", node="node-1", alpha=True, workers=WORKERS)
    server = build_server(driver, Registry([make("fast", Failing)]), LocalHost(), Mode.ALL)
    server.add_insecure_port(f"unix:{tmp_path}/csi.sock")
    server.start()
    client = Client(f"unix:{tmp_path}/csi.sock", timeout=20)
    with pytest.raises(grpc.RpcError):
        client.ControllerGetVolume(volume_id="fast/v")
    assert len(new(before)) > WORKERS

    client.close()
    server.stop(0).wait()
    del server

    end = time.monotonic() + 60
    while new(before):
        assert time.monotonic() < end
        time.sleep(0.01)


def new(before: set[threading.Thread]) -> list[str]:
    """The names of the threads for RPCs that were not there before."""
    return [one.name for one in set(threading.enumerate()) - before if one.name.startswith(("rpc", "instant"))]


@pytest.mark.parametrize(
    ("mode", "workers"), [(Mode.CONTROLLER, 256), (Mode.ALL, 256), (Mode.NODE, 64)], ids=lambda one: str(one)
)
def test_a_controller_has_as_many_workers_as_its_sidecars_send_rpcs_and_a_node_fewer(mode: Mode, workers: int) -> None:
    assert workers_of(Driver(name="multi.csi.example.com"), mode) == workers
    assert workers_of(Driver(name="multi.csi.example.com", workers=9), mode) == 9


@pytest.mark.parametrize("workers", [8, 64, 256, 2048])
def test_there_are_threads_for_all_rpcs_that_run_and_for_those_that_wait_because_of_a_hanging_instance(
    workers: int,
) -> None:
    shared = SharedRpcState(workers)
    running = sum(slots.total for slots in shared.slots.values())
    kept_waiting = sum(slots.places // 2 for slots in shared.slots.values())

    assert shared.threads >= running + kept_waiting + workers
