"""The process: its socket, its signals, and many clients at once."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from csi_multi.node import device_records
from csi_multi.process.driver_process import DriverProcess, NotServing
from csi_multi.rpc.client import Client
from csi_multi.rpc.interceptor import SharedRpcState
from csi_multi.rpc.rules import RpcCost
from csi_multi.rpc.server import NODE_WORKERS

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
KUBELET_TIMEOUT = 120.0  # seconds that kubelet waits for NodeStageVolume
MOUNT = {"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}


def volume(client: Client, name: str, size: int = 32 * MIB, **more: Any) -> Any:
    wanted = {"capacity_range": {"required_bytes": size}, "volume_capabilities": [MOUNT]}
    return client.CreateVolume(name=name, **wanted, **more).volume


def test_200_concurrent_creates_of_one_name_make_one_volume(client: Client, tmp_path: Path) -> None:
    def create(_: int) -> tuple[str, str]:
        try:
            return "OK", volume(client, "one").volume_id
        except grpc.RpcError as error:
            return error.code().name, error.details()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(200)))

    codes = Counter(code for code, _ in answers)
    assert set(codes) <= {"OK", "ABORTED"}
    assert codes["OK"] >= 1
    assert {text for code, text in answers if code == "OK"} == {volume(client, "one").volume_id}
    assert len(list((tmp_path / "scratch/volumes").iterdir())) == 1
    client.DeleteVolume(volume_id=volume(client, "one").volume_id)


def test_no_volume_is_called_busy_because_others_are_staged_at_the_same_time(client: Client, tmp_path: Path) -> None:
    ext4 = {"mount": {"fs_type": "ext4"}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
    made = [volume(client, f"v{number}").volume_id for number in range(30)]
    refusals: list[str] = []

    def live(handle: str) -> None:
        path = tmp_path / f"staging-{made.index(handle)}"
        path.mkdir()
        fields = {"volume_id": handle, "staging_target_path": str(path)}
        try:
            for _ in range(2):
                client.NodeStageVolume(**fields, volume_capability=ext4)
                client.NodeUnstageVolume(**fields)
        except grpc.RpcError as error:
            refusals.append(f"{error.code().name}: {error.details()}")

    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(live, made))

    assert refusals == []
    for handle in made:
        client.DeleteVolume(volume_id=handle)


def test_50_stagings_at_once_are_more_than_the_slots_and_none_is_refused(
    make_driver: Callable[..., DriverProcess], tmp_path: Path
) -> None:
    # In a mount namespace of its own, because one that another process copies meanwhile keeps devices in use.
    driver = make_driver(f"workers: {NODE_WORKERS}", wrapper=("unshare", "--mount", "--propagation", "private"))
    client = driver.start()
    made = [volume(client, f"v{number}").volume_id for number in range(50)]
    assert SharedRpcState(NODE_WORKERS).slots[RpcCost.WORKING].total < len(made)
    all_ready = threading.Barrier(len(made))

    def fields(handle: str) -> dict[str, str]:
        path = tmp_path / f"staging-{made.index(handle)}"
        path.mkdir(exist_ok=True)
        return {"volume_id": handle, "staging_target_path": str(path)}

    def answer(rpc: Callable[..., Any], handle: str, **more: Any) -> str:
        all_ready.wait(60)
        try:
            rpc(**fields(handle), **more, timeout=KUBELET_TIMEOUT)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return "OK"

    with ThreadPoolExecutor(len(made)) as pool:
        for _ in range(2):  # with mkfs and without
            staged = Counter(pool.map(lambda one: answer(client.NodeStageVolume, one, volume_capability=MOUNT), made))
            assert staged == {"OK": len(made)}
            unstaged = Counter(pool.map(lambda one: answer(client.NodeUnstageVolume, one), made))
            assert unstaged == {"OK": len(made)}
    for handle in made:
        client.DeleteVolume(volume_id=handle)
    client.close()
    assert driver.stop() == 0


def test_a_second_driver_on_a_live_socket_is_refused(make_driver: Callable[..., DriverProcess]) -> None:
    first, second = make_driver(), make_driver()
    client = first.start()
    with pytest.raises(NotServing, match="another driver is listening"):
        started_alone(second)

    client.Probe()
    client.close()
    assert first.stop() == 0
    assert not first.socket.exists()


def started_alone(driver: DriverProcess) -> None:
    """Start a driver that must not start: the client would reach the other one."""
    driver.launch()
    code = driver.process.wait(timeout=20)
    raise NotServing(f"exit code {code}\n{driver.log_tail()}")


def test_a_stale_socket_is_replaced(driver: DriverProcess) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(driver.socket))

    client = driver.start()
    client.Probe()
    client.close()
    assert driver.stop() == 0


def test_a_socket_left_by_kill_9_is_replaced(driver: DriverProcess) -> None:
    driver.start().close()
    driver.kill()
    assert driver.socket.exists()

    client = driver.start()
    client.Probe()
    client.close()
    assert driver.stop() == 0


def test_a_file_that_is_no_socket_is_left_alone(driver: DriverProcess) -> None:
    driver.socket.write_text("precious")
    with pytest.raises(NotServing, match="not a socket"):
        started_alone(driver)

    assert driver.socket.read_text() == "precious"


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        ("", "not set"),
        ("tcp://127.0.0.1:1", "is not of the form unix:"),
        ("unix:///tmp/no-such-directory/x.sock", "cannot be used"),
    ],
)
def test_a_bad_endpoint_ends_the_process_at_once(
    make_driver: Callable[..., DriverProcess], endpoint: str, reason: str
) -> None:
    driver = make_driver(environment={"CSI_ENDPOINT": endpoint})
    driver.launch()

    assert driver.process.wait(timeout=20) == 2
    assert reason in driver.log_tail()


def test_bad_configuration_ends_the_process_naming_file_and_line(make_driver: Callable[..., DriverProcess]) -> None:
    driver = make_driver("log_levle: info")
    driver.launch()

    assert driver.process.wait(timeout=20) == 2
    assert (
        f"{driver.directory}/csi.yaml:1: driver: unknown key 'log_levle'; did you mean 'log_level'?"
        in driver.log_tail()
    )


def test_nothing_appears_beside_the_socket(driver: DriverProcess) -> None:
    before = set(os.listdir(driver.directory))
    client = driver.start()
    client.Probe()

    assert set(os.listdir(driver.directory)) - before <= {"csi.sock", "csi.log", "scratch"}
    client.close()
    driver.stop()


def test_an_expansion_that_does_not_fit_is_refused_so_that_a_smaller_one_can_follow(client: Client) -> None:
    made = volume(client, "grows").volume_id

    with pytest.raises(grpc.RpcError) as refused:
        client.ControllerExpandVolume(volume_id=made, capacity_range={"required_bytes": 1 << 50})
    smaller = client.ControllerExpandVolume(volume_id=made, capacity_range={"required_bytes": 48 * MIB})

    assert refused.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert smaller.capacity_bytes == 48 * MIB
    client.DeleteVolume(volume_id=made)


def test_a_driver_that_is_started_with_umask_0_lets_nobody_else_connect(
    make_driver: Callable[..., DriverProcess],
) -> None:
    driver = make_driver(wrapper=("sh", "-c", 'umask 0; exec "$@"', "sh"))
    driver.start().close()

    assert stat.S_IMODE(driver.socket.stat().st_mode) == 0o770
    driver.stop()


def test_a_driver_that_is_started_with_umask_0_makes_nothing_that_all_may_write(
    make_driver: Callable[..., DriverProcess], tmp_path: Path
) -> None:
    (tmp_path / "staging").mkdir()
    driver = make_driver(wrapper=("sh", "-c", 'umask 0; exec "$@"', "sh"))
    file = tmp_path / "csi.yaml"
    text = file.read_text().replace(f"{tmp_path}/scratch", f"{tmp_path}/missing/parent/scratch")
    file.write_text(text)
    client = driver.start()
    made = volume(client, "v").volume_id
    fields = {"volume_id": made, "staging_target_path": str(tmp_path / "staging")}
    client.NodeStageVolume(**fields, volume_capability=MOUNT)

    note = device_records.NOTES / device_number(tmp_path / "staging")
    found = [note, tmp_path / "missing", *(tmp_path / "missing").rglob("*")]
    assert [str(path) for path in found if path.stat().st_mode & stat.S_IWOTH] == []
    assert len(found) > 8
    client.NodeUnstageVolume(**fields)
    client.DeleteVolume(volume_id=made)
    client.close()
    driver.stop()


def device_number(path: Path) -> str:
    number = path.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_a_driver_without_standard_streams_serves_and_gives_their_numbers_to_no_other_file(
    make_driver: Callable[..., DriverProcess], closed: str
) -> None:
    driver = make_driver(wrapper=("sh", "-c", f'exec "$@" {closed}', "sh"))
    client = driver.start()

    assert client.Probe().ready.value
    streams = {str(Path(f"/proc/{driver.process.pid}/fd/{number}").readlink()) for number in range(3)}
    assert streams <= {os.devnull}
    client.close()
    assert driver.stop() == 0


def test_a_log_that_nobody_reads_holds_up_no_rpc(make_driver: Callable[..., DriverProcess], tmp_path: Path) -> None:
    """Each failed creation logs more than a kilobyte; a pipe holds 64 of them."""
    script = 'mkfifo "$0"; exec 3<>"$0"; exec "$@" 2>&3 3>&-'
    driver = make_driver(wrapper=("sh", "-c", script, str(tmp_path / "unread")))
    client = driver.start()

    def refuse(number: int) -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as found:
            client.CreateVolume(name=f"v{number}", volume_capabilities=[MOUNT], parameters={"x" * 1000: "y"})
        return found.value.code()

    with ThreadPoolExecutor(8) as pool:
        codes = Counter(pool.map(refuse, range(300)))
    assert codes == {grpc.StatusCode.INVALID_ARGUMENT: 300}
    client.close()
    assert driver.stop() == 0


def test_a_bomb_in_a_file_that_is_reloaded_is_refused_and_the_driver_can_be_stopped(
    make_driver: Callable[..., DriverProcess],
) -> None:
    driver = make_driver("reload_seconds: 0")
    client = driver.start()
    levels = (f"a{one}: &a{one} [{', '.join([f'*a{one - 1}'] * 9)}]\n" for one in range(1, 12))
    (driver.directory / "csi.yaml").write_text("a0: &a0 [x]\n" + "".join(levels))
    driver.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 60
    while "more than 100000 values" not in driver.log_tail(5000):
        assert time.monotonic() < end, driver.log_tail()
        time.sleep(0.02)

    assert client.Probe().ready.value
    client.close()
    assert driver.stop() == 0


def test_sigterm_lets_a_running_create_finish_and_refuses_new_ones(driver: DriverProcess, tmp_path: Path) -> None:
    client = driver.start()
    source = volume(client, "source", 600 * MIB)
    image = next((tmp_path / "scratch/volumes").glob("*/image"))
    with image.open("r+b") as file:  # a copy of real data takes a while
        for _ in range(512):
            file.write(os.urandom(MIB))
    answers: list[Any] = []
    copying = threading.Thread(
        target=lambda: answers.append(
            volume(client, "copy", 600 * MIB, volume_content_source={"volume": {"volume_id": source.volume_id}})
        )
    )
    copying.start()
    end = time.monotonic() + 60
    while driver.log_tail(100_000).count("CreateVolume begins") < 2:
        assert time.monotonic() < end, driver.log_tail()
        time.sleep(0.005)
    driver.process.send_signal(signal.SIGTERM)
    code = driver.process.wait(timeout=60)
    copying.join()

    assert code == 0
    assert [answer.volume_id for answer in answers] == ["scratch/n1/copy"]
    assert not driver.socket.exists()
    client.close()
    client = driver.start()
    assert (
        volume(client, "copy", 600 * MIB, volume_content_source={"volume": {"volume_id": source.volume_id}}).volume_id
        == "scratch/n1/copy"
    )
    for name in ("copy", "source"):
        client.DeleteVolume(volume_id=f"scratch/n1/{name}")
    client.close()
    driver.stop()
