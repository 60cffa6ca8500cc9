"""A driver process: its metrics over HTTP, and a configuration that changes under it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.process.driver_process import DriverProcess

pytestmark = [pytest.mark.root, pytest.mark.slow]
pytest.importorskip("prometheus_client", reason="needs prometheus-client")

MIB = 1 << 20
MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
WAIT = 20.0  # seconds for something that happens soon


class Driver:
    """A driver over instances of the loop backend, whose file can be written anew."""

    def __init__(self, directory: Path, driver: str = "metrics: '127.0.0.1:0'") -> None:
        self.directory = directory
        self.settings = driver
        self.process = DriverProcess(directory, self.text("a", "b"))

    def text(self, *names: str, min_mib: int = 16) -> str:
        """`min_mib` tells two files apart. No space is kept free: how full the machine's disk is must not matter."""
        lines = [f"driver: {{name: ops.csi-multi.example, node: n1, default_backend: a, {self.settings}}}", "backends:"]
        common = f"reserve_percent: 0, overprovision: 1000, min_size: {min_mib << 20}"
        lines += [f"  {name}: {{kind: loop, directory: {self.directory}/{name}, {common}}}" for name in names]
        return "\n".join(lines) + "\n"

    def write(self, text: str) -> None:
        """Replace the file in one step, as those who care do."""
        new = self.directory / "new"
        new.write_text(text)
        new.rename(self.directory / "csi.yaml")

    def lines(self) -> list[dict[str, Any]]:
        text = self.process.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def until(self, told: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + WAIT
        while not (found := told()):
            assert self.process.process.poll() is None, self.process.log_tail()
            assert time.monotonic() < end, f"{what} did not come:\n{self.process.log_tail()}"
            time.sleep(0.02)
        return found

    def logged(self, message: str, times: int = 1) -> dict[str, Any]:
        def told() -> list[dict[str, Any]]:
            found = [line for line in self.lines() if message in line["message"]]
            return found if len(found) >= times else []

        return self.until(told, f"the line {message!r}")[-1]

    def hangup(self) -> None:
        self.process.process.send_signal(signal.SIGHUP)

    @property
    def address(self) -> str:
        return str(self.logged("metrics")["address"])


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def driver(*words: str) -> Driver:
        made.append(Driver(tmp_path, *words))
        return made[-1]

    yield driver
    for one in made:
        if hasattr(one.process, "process") and one.process.process.poll() is None:
            one.process.kill()


def create(client: Any, name: str, backend: str) -> str:
    answer = client.CreateVolume(
        name=name,
        volume_capabilities=[MOUNT],
        capacity_range={"required_bytes": 32 * MIB},
        parameters={"backend": backend},
    )
    return str(answer.volume.volume_id)


def test_a_process_shows_what_it_did_how_its_storage_is_and_what_is_there(drive: Any, fetch: Any, read: Any) -> None:
    driver = drive("metrics: '127.0.0.1:0', survey_seconds: 1, check_seconds: 1")
    client = driver.process.start()
    create(client, "v", "a")
    assert [fetch(driver.address, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
    driver.until(lambda: read(driver.address)("csi_multi_volumes", backend="a") == [1], "the count of volumes")

    samples = read(driver.address)
    assert samples("csi_multi_rpcs_total", method="CreateVolume", backend="a", code="OK") == [1]
    assert samples("csi_multi_volumes_bytes", backend="a") == [32 * MIB]
    assert samples("csi_multi_volumes", backend="b") == [0]
    assert samples("csi_multi_capacity_available_bytes", backend="b") > [MIB]
    assert samples("csi_multi_backend_up", kind="loop") == [1, 1]
    assert samples("csi_multi_config_last_reload_successful") == [1]
    client.close()
    assert driver.process.stop() == 0


def test_log_lines_that_nobody_reads_are_counted(read: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = Driver(tmp_path, f"metrics: '{address}'").text("a")
    script = 'mkfifo "$0"; exec 3<>"$0"; exec "$@" 2>&3 3>&-'
    process = DriverProcess(tmp_path, config, wrapper=("sh", "-c", script, str(tmp_path / "unread")))
    client = process.start()
    try:
        assert read(address)("csi_multi_log_lines_dropped_total") == [0]
        for _ in range(100):  # each logs more than a kilobyte, and a pipe holds 64 of them
            with pytest.raises(grpc.RpcError):
                client.CreateVolume(name="v", volume_capabilities=[MOUNT], parameters={"x" * 1000: "y"})

        assert read(address)("csi_multi_log_lines_dropped_total") >= [50]
    finally:
        client.close()
        process.kill()


def test_the_node_engines_commands_count_for_the_volumes_backend(drive: Any, read: Any, tmp_path: Path) -> None:
    driver = drive()
    client = driver.process.start()
    staging = tmp_path / "staging"
    staging.mkdir()
    volume = create(client, "v", "b")
    client.NodeStageVolume(volume_id=volume, staging_target_path=str(staging), volume_capability=MOUNT)
    client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(staging))

    programs = {row["program"] for row in read(driver.address).labels("csi_multi_storage_calls_total")}
    assert {"losetup", "blkid", "mkfs.ext4", "mount", "umount"} <= programs
    assert {row["backend"] for row in read(driver.address).labels("csi_multi_storage_calls_total")} == {"b"}
    client.close()
    assert driver.process.stop() == 0


def test_without_the_setting_there_is_no_port_and_nothing_is_imported(drive: Any) -> None:
    driver = drive("log_level: info")
    client = driver.process.start()
    client.Probe()

    maps = Path(f"/proc/{driver.process.process.pid}/net/tcp")
    assert maps.exists()
    sockets = [str(one.readlink()) for one in Path(f"/proc/{driver.process.process.pid}/fd").iterdir()]
    inodes = {text[8:-1] for text in sockets if text.startswith("socket:")}
    assert not [line for line in maps.read_text().splitlines() if line.split()[9] in inodes]
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import csi_multi.process.serve"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not re.search(r"prometheus|opentelemetry|http\.server", told.stderr)
    client.close()
    assert driver.process.stop() == 0


def test_a_port_that_is_taken_ends_the_process_at_once_and_is_named(drive: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        driver = drive(f"metrics: '{address}'")
        driver.process.launch()

        assert driver.process.process.wait(WAIT) == 2
    assert f"driver.metrics: cannot listen on {address}" in driver.process.log_tail()
    assert not driver.process.socket.exists()


def test_a_reload_under_fifty_concurrent_calls_loses_none(drive: Any, read: Any) -> None:
    driver = drive("metrics: '127.0.0.1:0', workers: 256, log_level: info")
    client, stop, failures, done = driver.process.start(), threading.Event(), [], [0] * 50

    def work(number: int) -> None:
        """Make and delete volumes in two instances; ask again where that is the answer, as orchestrators do."""
        while not stop.is_set():
            for backend in ("a", "b"):
                try:
                    volume = create(client, f"v{number}", backend)
                    client.DeleteVolume(volume_id=volume)
                    done[number] += 1
                except grpc.RpcError as error:
                    # A new instance sweeps what dead processes left, and looks at what is being made for a moment.
                    # On a busy machine fifty calls may wait for the directory longer than a call waits.
                    waited = "has been locked by another operation" in str(error.details())
                    if error.code() is not grpc.StatusCode.ABORTED and not waited:
                        failures.append(f"{error.code()}: {error.details()}")

    with ThreadPoolExecutor(50) as pool:
        running = [pool.submit(work, number) for number in range(50)]
        try:
            for times in range(1, 9):
                driver.write(driver.text("a", *(["b", "c"] if times % 2 else ["b"]), min_mib=16 + times))
                driver.hangup()
                driver.logged("the new configuration is in use", times)
                before = sum(done)
                driver.until(lambda before=before: sum(done) > before + 50 or failures, "calls between two reloads")
        finally:
            stop.set()
        for one in running:
            one.result()

    assert failures == []
    assert read(driver.address)("csi_multi_config_last_reload_successful") == [1]
    client.close()
    assert driver.process.stop() == 0


def test_a_bad_file_is_refused_and_shown_and_the_next_good_one_is_taken_by_itself(drive: Any, read: Any) -> None:
    driver = drive("metrics: '127.0.0.1:0', reload_seconds: 1")
    client = driver.process.start()
    driver.write(driver.text("a").replace("loop", "lop"))
    line = driver.logged("the new configuration is not used")
    assert (line["level"], "csi.yaml:3: backends.a.kind" in line["message"]) == ("error", True)
    assert read(driver.address)("csi_multi_config_last_reload_successful") == [0]
    assert create(client, "v", "b") == "b/n1/v"
    driver.write(driver.text("a", "b", "c"))

    assert driver.logged("the new configuration is in use")["added"] == ["c"]
    assert create(client, "v", "c") == "c/n1/v"
    client.close()
    assert driver.process.stop() == 0


def test_sigterm_during_a_reload_ends_the_process_cleanly(drive: Any) -> None:
    driver = drive("log_level: info")
    client = driver.process.start()
    for number in range(20):
        driver.write(driver.text("a", "b", *(f"n{index}" for index in range(number))))
        driver.hangup()

    assert driver.process.stop() == 0
    assert not driver.process.socket.exists()
    client.close()


def test_a_hangup_changes_nothing_when_nothing_has_changed(drive: Any) -> None:
    driver = drive("log_level: info")
    client = driver.process.start()
    driver.hangup()

    line = driver.logged("the new configuration is in use")
    assert (line["added"], line["removed"], line["kept"]) == ([], [], ["a", "b"])
    client.close()
    assert driver.process.stop() == 0
