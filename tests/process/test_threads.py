"""A process that may start no more threads serves on, and ends at SIGTERM; one that cannot serve ends by itself."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.process.driver_process import DriverProcess

pytestmark = pytest.mark.slow

# The instance waits in the storage for as long as the file `hold` is there.
PACKAGE = """\
import os, time
from csi_multi_testing.memory import MemoryBackend
class Own(MemoryBackend):
    def create_volume(self, request):
        while os.path.exists(os.environ["HOLD"]):
            time.sleep(0.02)
        return super().create_volume(request)
"""
MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
Drive = Callable[..., DriverProcess]


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    return tmp_path / "hold"


@pytest.fixture
def drive(tmp_path: Path, hold: Path) -> Iterator[Drive]:
    """drive() is a driver with one instance, in a process of its own."""
    made: list[DriverProcess] = []
    site = tmp_path / "site"
    site.mkdir()

    def driver(workers: int = 16, custom: str = "", **more: Any) -> DriverProcess:
        (site / "csi_held.py").write_text(PACKAGE)
        (site / "sitecustomize.py").write_text(custom)
        facts = site / "csi_held-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: csi_held\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("[csi_multi.backends]\nheld = csi_held:Own\n")
        config = f"driver: {{name: threads.example, node: n1, workers: {workers}}}\nbackends: {{a: {{kind: held}}}}\n"
        environment = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOLD": str(hold)}
        made.append(DriverProcess(tmp_path, config, environment=environment, **more))
        return made[-1]

    yield driver
    for one in made:
        if hasattr(one, "process") and one.process.poll() is None:
            one.kill()


def start_no_more_threads(process: int) -> None:
    """Limit the address space to little more than what is in use: the stack of one more thread does not fit in."""
    used = int(Path(f"/proc/{process}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(process, resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))


def create(client: Any, number: int) -> str:
    answer = client.CreateVolume(
        name=f"v{number}", volume_capabilities=[MOUNT], parameters={"backend": "a"}, timeout=30
    )
    return str(answer.volume.volume_id)


def test_a_process_that_may_start_no_more_threads_serves_as_many_rpcs_as_before_and_ends_at_sigterm(
    drive: Drive, hold: Path
) -> None:
    driver = drive()
    client = driver.start()
    client.Probe(timeout=10)
    start_no_more_threads(driver.process.pid)
    hold.touch()
    with ThreadPoolExecutor(60) as pool:
        calls = [pool.submit(create, client, number) for number in range(60)]
        for _ in range(20):
            assert client.Probe(timeout=10).ready.value
        hold.unlink()

        assert {call.result(30) for call in calls} == {f"a/v{number}" for number in range(60)}
    client.close()
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(timeout=30) == 0


def test_a_start_without_enough_threads_ends_with_the_reason(drive: Drive) -> None:
    driver = drive(workers=2048, wrapper=("prlimit", f"--as={4 << 30}"))
    driver.launch()

    assert driver.process.wait(timeout=60) == 2
    assert "threads for RPCs cannot be started" in driver.log_tail()
    assert "lower driver.workers" in driver.log_tail()


NO_THREAD = """\
import os, threading
start = threading.Thread.start
def refuse(thread):
    if os.path.exists(os.environ["HOLD"]):
        raise RuntimeError("can't start new thread")
    start(thread)
threading.Thread.start = refuse
"""


def test_the_stop_needs_no_thread(drive: Drive, hold: Path) -> None:
    driver = drive(custom=NO_THREAD)
    client = driver.start()
    create(client, 1)
    hold.touch()
    client.Probe(timeout=10)

    driver.process.send_signal(signal.SIGTERM)

    assert driver.process.wait(timeout=30) == 0
    assert "stopping: no thread can be started (limit of processes or memory)" in driver.log.read_text()
    client.close()


# What ends gRPC's serving thread here is an error on its way to a handler, as of memory that is used up.
BROKEN = """\
import os
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import grpc._server as server
handle = server._handle_call
def handle_call(*words):
    if os.path.exists(os.environ["HOLD"]):
        raise MemoryError
    return handle(*words)
server._handle_call = handle_call
"""


def test_a_process_whose_serving_thread_has_ended_ends_so_that_it_is_started_again(drive: Drive, hold: Path) -> None:
    driver = drive(custom=BROKEN)
    client = driver.start()
    client.Probe(timeout=10)
    hold.touch()
    began = time.monotonic()

    with pytest.raises(grpc.RpcError):
        client.Probe(timeout=20)

    assert driver.process.wait(timeout=20) == 1
    assert time.monotonic() - began < 20, "the caller did not wait for its own limit"
    assert "no RPC can be answered without it, so the driver ends" in driver.log.read_text()
    client.close()
