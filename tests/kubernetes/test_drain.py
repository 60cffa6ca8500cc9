"""The drain hook waits for the driver's volumes on a node that is drained, and never elsewhere."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from csi_multi.kubernetes import drain
from csi_multi.kubernetes.api import KubernetesApi

from .conftest import Cluster

DRIVER = "multi.csi.example.com"


@pytest.fixture
def kubelet(tmp_path: Path) -> Path:
    return tmp_path / "kubelet"


def filesystem(kubelet: Path, driver: str = DRIVER, name: str = "0a1b") -> Path:
    """What the kubelet has while a volume with a filesystem is staged."""
    directory = kubelet / "plugins/kubernetes.io/csi" / driver / name
    (directory / "globalmount").mkdir(parents=True)
    (directory / "vol_data.json").write_text(json.dumps({"driverName": driver, "volumeHandle": "fast/x"}))
    return directory


def block(kubelet: Path, driver: str = DRIVER, name: str = "pvc-1") -> Path:
    """What the kubelet has while a raw block volume is staged."""
    directory = kubelet / "plugins/kubernetes.io/csi/volumeDevices" / name
    (directory / "data").mkdir(parents=True)
    (directory / "data/vol_data.json").write_text(json.dumps({"driverName": driver, "specVolID": name}))
    return directory


def test_a_node_that_stays_is_not_waited_for(cluster: Cluster, kubelet: Path) -> None:
    cluster.node("node-1", "dedicated")
    filesystem(kubelet)

    assert drain.wait_until_unstaged(cluster.api, "node-1", DRIVER, kubelet, seconds=0)


@pytest.mark.parametrize("taint", sorted(drain.DRAIN_TAINTS))
def test_a_node_that_is_emptied_is_told_by_its_taint(cluster: Cluster, taint: str) -> None:
    cluster.node("node-1", taint)

    assert drain.is_drained(cluster.api, "node-1")


def test_a_node_that_is_cordoned_is_leaving(cluster: Cluster) -> None:
    cluster.node("node-1", unschedulable=True)

    assert drain.is_drained(cluster.api, "node-1")


@pytest.mark.parametrize("staged", [filesystem, block])
def test_a_drained_node_is_waited_for_until_its_last_volume_is_unstaged(
    cluster: Cluster, kubelet: Path, monkeypatch: pytest.MonkeyPatch, staged: type
) -> None:
    cluster.node("node-1", unschedulable=True)
    directory = staged(kubelet)
    looked = threading.Event()

    def unstage(_seconds: float) -> None:
        assert not looked.is_set(), "it went on waiting"
        looked.set()
        shutil.rmtree(directory)

    monkeypatch.setattr(drain, "time", SimpleNamespace(monotonic=time.monotonic, sleep=unstage))

    assert drain.wait_until_unstaged(cluster.api, "node-1", DRIVER, kubelet, seconds=60)
    assert looked.is_set()


@pytest.mark.parametrize("staged", [filesystem, block])
def test_volumes_of_other_drivers_are_not_waited_for(cluster: Cluster, kubelet: Path, staged: type) -> None:
    cluster.node("node-1", unschedulable=True)
    staged(kubelet, driver="another.example.com")

    assert drain.wait_until_unstaged(cluster.api, "node-1", DRIVER, kubelet, seconds=0)


def test_the_wait_has_an_end_and_names_what_is_left(
    cluster: Cluster, kubelet: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.node("node-1", unschedulable=True)
    filesystem(kubelet, name="0a1b")
    block(kubelet, name="pvc-1")

    assert not drain.wait_until_unstaged(cluster.api, "node-1", DRIVER, kubelet, seconds=0)
    assert "0a1b, pvc-1" in caplog.text


def test_an_api_that_cannot_be_reached_is_not_waited_for(kubelet: Path, credentials: Path) -> None:
    filesystem(kubelet)
    nowhere = KubernetesApi("https://localhost:1", str(credentials))

    assert drain.wait_until_unstaged(nowhere, "node-1", DRIVER, kubelet, seconds=0)


def test_a_node_that_the_api_does_not_know_is_not_waited_for(cluster: Cluster, kubelet: Path) -> None:
    assert drain.wait_until_unstaged(cluster.api, "node-9", DRIVER, kubelet, seconds=0)


def test_a_file_that_is_being_written_is_nobodys(kubelet: Path) -> None:
    (block(kubelet) / "data/vol_data.json").write_text("{")

    assert drain.staged_volumes(kubelet, DRIVER) == []
