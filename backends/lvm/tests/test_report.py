"""Values from lvm's JSON."""

from __future__ import annotations

import json

import pytest

from csi_multi.contract import Unavailable

from .recording import client_with


@pytest.mark.parametrize("stdout", ["", "{", '{"report": 1}', '{"report": [{"lv": [{"lv_size": "1"}]}]}'])
def test_a_report_that_cannot_be_read_never_means_absent(stdout: str) -> None:
    client, _ = client_with(stdout=stdout)
    with pytest.raises(Unavailable):
        client.find("csi-a")


def test_an_empty_report_that_succeeded_means_absent() -> None:
    client, _ = client_with(stdout=json.dumps({"report": [{"lv": []}]}))
    assert client.find("csi-a") == {}


def test_the_device_uuid_consists_of_those_of_group_and_volume() -> None:
    row = {"vg_uuid": "AB-C", "lv_uuid": "D-EF", "lv_name": "csi-a", "lv_size": "4194304", "lv_active": "active"}
    client, _ = client_with(stdout=json.dumps({"report": [{"lv": [row]}]}))
    found = client.find("csi-a")["csi-a"]
    assert (found.uuid, found.size, found.active, found.open) == ("LVM-ABCDEF", 4194304, True, False)
