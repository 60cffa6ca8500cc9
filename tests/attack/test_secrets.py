"""Secrets and mount flags are in no log line, no error message, and no command's arguments."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from csi_multi_testing import requests

from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

pytestmark = [pytest.mark.root, pytest.mark.slow]

MIB = 1 << 20
SECRET = "hunter2-correct-horse"
FLAGS = ("commit=7331", "stripe=4242")  # ext4 takes them
BAD_FLAG = "no_such_option=swordfish"
HIDDEN = (SECRET, *FLAGS, "7331", "4242", BAD_FLAG, "swordfish", "no_such_option")


@pytest.fixture
def traced(make_driver: Callable[..., DriverProcess], tmp_path: Path) -> tuple[DriverProcess, Path]:
    """A driver at log level debug; strace records the arguments of every command."""
    words = tmp_path / "execve"
    wrapper = ("strace", "-f", "-qq", "-v", "-e", "trace=execve", "-s", "65535", "-o", str(words))
    driver = make_driver("log_level: debug", wrapper=wrapper)
    return driver, words


def test_they_are_nowhere_to_be_seen(traced: tuple[DriverProcess, Path], tmp_path: Path) -> None:
    driver, words = traced
    client = driver.start()
    messages: list[str] = []

    def call(rpc: str, **fields: Any) -> Any:
        takes = requests.methods()[rpc].input_type.fields_by_name
        secrets = {"secrets": {"password": SECRET}} if "secrets" in takes else {}
        try:
            return getattr(client, rpc)(**fields, **secrets)
        except grpc.RpcError as error:
            messages.append(f"{error.code().name} {error.details()} {error.trailing_metadata()}")
            return None

    lifecycle(call, tmp_path, list(FLAGS))
    lifecycle(call, tmp_path, [BAD_FLAG])
    everything_else(call)
    client.close()
    stop_traced(driver)
    log, commands = driver.log.read_text(), words.read_text()

    assert [hidden for hidden in HIDDEN if hidden in log] == []
    assert [hidden for hidden in HIDDEN if hidden in "\n".join(messages)] == []
    assert [hidden for hidden in HIDDEN if hidden in commands] == []
    assert "***" in log  # the hidden values were used
    assert '"mkfs.ext4"' in commands
    assert any("FAILED_PRECONDITION" in text for text in messages)  # the bad flag


def stop_traced(driver: DriverProcess) -> None:
    """Send SIGTERM to the driver itself: strace does not pass it on."""
    serving = next(line for line in driver.log.read_text().splitlines() if '"message":"serving"' in line)
    os.kill(json.loads(serving)["pid"], signal.SIGTERM)
    assert driver.process.wait(timeout=60) == 0


def lifecycle(call: Callable[..., Any], directory: Path, flags: list[str]) -> None:
    capability = {"mount": {"fs_type": "ext4", "mount_flags": flags}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}
    one = {"volume_capability": capability}
    name = f"v{len(flags)}"
    volume = call(
        "CreateVolume", name=name, volume_capabilities=[capability], capacity_range={"required_bytes": 32 * MIB}
    ).volume.volume_id
    staging, target = directory / f"staging-{name}", directory / f"target-{name}"
    staging.mkdir()
    at = {"volume_id": volume, "staging_target_path": str(staging)}
    call("NodeStageVolume", **at, **one)
    call("NodeStageVolume", **at, volume_capability={**capability, "mount": {"fs_type": "xfs", "mount_flags": flags}})
    call("NodePublishVolume", **at, **one, target_path=str(target))
    call("NodePublishVolume", **at, **one, target_path=str(target), readonly=True)
    call("NodeExpandVolume", volume_id=volume, volume_path=str(target), **one)
    call("ValidateVolumeCapabilities", volume_id=volume, volume_capabilities=[capability])
    call("NodeUnpublishVolume", volume_id=volume, target_path=str(target))
    call("NodeUnstageVolume", **at)
    call("DeleteVolume", volume_id=volume)


def everything_else(call: Callable[..., Any]) -> None:
    """Every RPC that takes secrets, with ids that do not exist, so that it fails or does nothing."""
    for rpc, method in requests.methods().items():
        if "secrets" in method.input_type.fields_by_name and not method.server_streaming:
            ids = [name for name in method.input_type.fields_by_name if name.endswith("_id")]
            call(rpc, **dict.fromkeys(ids, "scratch/n1/absent"))


def test_a_client_sees_the_reason_nevertheless(client: Client) -> None:
    with pytest.raises(grpc.RpcError, match="name is required"):
        client.CreateVolume(secrets={"password": SECRET})
