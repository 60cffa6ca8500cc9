"""The module that knows lvm's text: which exit status means what, and what a report says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from csi_multi_lvm.client import Client
from csi_multi_lvm.config import Config

from csi_multi.contract import Result, Unavailable


class RecordingHost:
    """A host on which every command has the same result, and that records the last command."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.argv: tuple[str, ...] = ()

    def run(self, *argv: str, ok: tuple[int, ...] = (0,), **_: Any) -> Result:
        assert ok == (0, 3, 5)
        self.argv = argv
        return self.result


Make = Callable[..., tuple[Client, RecordingHost]]


@pytest.fixture
def make() -> Make:
    def make(status: int = 0, stdout: str = "", stderr: str = "", **config: Any) -> tuple[Client, RecordingHost]:
        host = RecordingHost(Result(status, stdout, stderr))
        return Client(host, Config(volume_group="vg0", **config)), host

    return make


def test_a_report_that_failed_never_means_absent(make: Make) -> None:
    client, _ = make(5, stderr='  Volume group "vg0" not found\n')
    with pytest.raises(Unavailable, match="not found"):
        client.find("csi-a")
    with pytest.raises(Unavailable, match="not found"):
        client.report()


def test_a_report_without_the_group_is_no_answer(make: Make) -> None:
    client, _ = make(stdout=json.dumps({"report": [{"vg": [], "pv": [], "lv": []}]}))
    with pytest.raises(Unavailable, match="nothing about volume group vg0"):
        client.report()


def test_in_the_hosts_namespaces_the_hosts_own_settings_count(make: Make) -> None:
    client, host = make(namespace="host")
    client.activate("csi-a")
    assert host.argv == (
        *("nsenter", "--target", "1", "--mount", "--ipc", "--"),
        *("lvm", "lvchange", "-ay", "-K", "vg0/csi-a"),
    )


def test_in_its_own_namespaces_lvm_starts_no_daemon_and_waits_for_no_udev(make: Make) -> None:
    client, host = make(udev="no")
    client.activate("csi-a")
    settings = host.argv[host.argv.index("--config") + 1]
    assert settings == "activation/monitoring=0 activation/udev_sync=0 activation/udev_rules=0"
