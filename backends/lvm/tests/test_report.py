"""Values from lvm's JSON."""

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


@pytest.mark.parametrize("stdout", ["", "{", '{"report": 1}', '{"report": [{"lv": [{"lv_size": "1"}]}]}'])
def test_a_report_that_cannot_be_read_never_means_absent(make: Make, stdout: str) -> None:
    client, _ = make(stdout=stdout)
    with pytest.raises(Unavailable):
        client.find("csi-a")


def test_an_empty_report_that_succeeded_means_absent(make: Make) -> None:
    client, _ = make(stdout=json.dumps({"report": [{"lv": []}]}))
    assert client.find("csi-a") == {}


def test_the_device_is_known_by_the_uuids_of_group_and_volume(make: Make) -> None:
    row = {"vg_uuid": "AB-C", "lv_uuid": "D-EF", "lv_name": "csi-a", "lv_size": "4194304", "lv_active": "active"}
    client, _ = make(stdout=json.dumps({"report": [{"lv": [row]}]}))
    found = client.find("csi-a")["csi-a"]
    assert (found.uuid, found.size, found.active, found.open) == ("LVM-ABCDEF", 4194304, True, False)
