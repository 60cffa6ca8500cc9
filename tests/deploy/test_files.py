"""Files that the configuration names: one text is for controller and nodes, and each pod has what is mounted in it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

from .conftest import EXAMPLES, ROOT, Release, stored

STAGE_SECRET = tuple(f"csi.storage.k8s.io/node-stage-secret-{part}" for part in ("name", "namespace"))
RBD = ROOT / "config/helm/values/rbd.yaml"


def keyrings(release: Release) -> dict[str, str]:
    """By instance."""
    return {name: one["keyring"] for name, one in release.config["backends"].items() if "keyring" in one}


def mounted(release: Release, kind: str, file: str) -> bool:
    """Whether the driver's container has a Secret where the file is looked for."""
    pod, driver = release.pod(kind), release.containers(kind)["driver"]
    secrets = {volume["name"] for volume in pod["volumes"] if "secret" in volume}
    places = {mount["mountPath"] for mount in driver["volumeMounts"] if mount["name"] in secrets}
    return str(PurePosixPath(file).parent) in places


def test_the_controller_has_every_keyring_that_is_named(release: Release) -> None:
    assert not [file for file in keyrings(release).values() if not mounted(release, "Deployment", file)]


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda file: file.stem)
def test_where_nodes_have_no_keyring_every_class_brings_the_key(values: Path) -> None:
    release = Release(values, stored(values))
    for instance, file in keyrings(release).items():
        if mounted(release, "DaemonSet", file):
            continue
        classes = [one for one in release.all("StorageClass") if one["parameters"].get("backend") == instance]

        assert not [one["metadata"]["name"] for one in classes if not set(STAGE_SECRET) <= set(one["parameters"])]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Client]:
    """The driver of a node, from the example's ConfigMap, with no file but that."""
    release = Release(RBD, stored(RBD))
    named = [file for file in keyrings(release).values() if not mounted(release, "DaemonSet", file)]
    if any(Path(file).exists() for file in named):
        pytest.skip("this machine has a keyring where the chart's pods have theirs")
    assert named
    text: str = release.one("ConfigMap")["data"]["config.yaml"]
    process = DriverProcess(tmp_path, text.replace("driver:\n", "driver:\n  alpha: true\n"), mode="node")
    client = process.start()
    yield client
    client.close()
    assert process.stop() == 0, process.log_tail()


def test_a_node_with_only_what_is_mounted_serves_and_asks_its_cluster_nothing_by_itself(node: Client) -> None:
    """The monitors of the example do not answer: whoever asks them waits."""
    started = time.monotonic()

    assert node.Probe().ready.value
    assert node.NodeGetInfo().node_id
    assert not node.NodeGetStorageHealth().backend_health
    assert not node.NodeGetVolumeHealth(volume_id="ceph/v").volume_health.health_statuses
    assert time.monotonic() - started < 9  # of connect_seconds: 10
