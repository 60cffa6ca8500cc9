"""lvm's commands: their options, their settings, and reports that fail."""

from __future__ import annotations

import json

import pytest

from csi_multi.contract import Unavailable

from .recording import client_with


def test_a_failed_report_never_means_absent() -> None:
    client, _ = client_with(5, stderr='  Volume group "vg0" not found\n')
    with pytest.raises(Unavailable, match="not found"):
        client.find("csi-a")
    with pytest.raises(Unavailable, match="not found"):
        client.report()


def test_a_report_without_the_group_is_unavailable() -> None:
    client, _ = client_with(stdout=json.dumps({"report": [{"vg": [], "pv": [], "lv": []}]}))
    with pytest.raises(Unavailable, match="nothing about volume group vg0"):
        client.report()


def test_in_the_hosts_namespaces_the_hosts_settings_apply() -> None:
    client, host = client_with(namespace="host")
    client.activate("csi-a")
    assert host.argv == (
        *("nsenter", "--target", "1", "--mount", "--ipc", "--"),
        *("lvm", "lvchange", "-ay", "-K", "vg0/csi-a"),
    )


def test_in_its_own_namespaces_lvm_starts_no_daemon_and_does_not_wait_for_udev() -> None:
    client, host = client_with(udev="no")
    client.activate("csi-a")
    settings = host.argv[host.argv.index("--config") + 1]
    assert settings == "activation/monitoring=0 activation/udev_sync=0 activation/udev_rules=0"
