"""Two clusters are two instances of one driver: neither sees the other, nor waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from csi_multi_testing.orchestrator import Orchestrator

from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

from .ceph import Cluster
from .ceph_faults import frozen

MIB = 2**20
IN_TIME = 10.0  # seconds
NAMESPACE = "clusters"
CAPABILITY = {"access_mode": {"mode": 1}, "block": {}}


@pytest.fixture
def driver(cluster: Cluster, other_cluster: Cluster, tmp_path: Path) -> Iterator[DriverProcess]:
    """A driver with an instance in each, `a` and `b`."""
    for one in (cluster, other_cluster):
        one.add(NAMESPACE)
    config = {
        "driver": {"name": "multi.csi.test", "node": "n1", "default_backend": "a"},
        "backends": {"a": instance(cluster), "b": instance(other_cluster)},
    }
    process = DriverProcess(tmp_path, yaml.safe_dump(config))
    yield process
    if process.process.poll() is None:
        assert process.stop() == 0
    for one in (cluster, other_cluster):
        one.remove(NAMESPACE)


@pytest.fixture
def client(driver: DriverProcess) -> Iterator[Client]:
    connected = driver.start()
    yield connected
    connected.close()


def instance(cluster: Cluster) -> dict[str, Any]:
    return {
        "kind": "rbd",
        "monitors": list(cluster.monitors),
        "fsid": cluster.fsid,
        "pool": cluster.pool,
        "namespace": NAMESPACE,
        "user": cluster.user,
        "keyring": str(cluster.keyring),
        "connect_seconds": 2,
        "command_seconds": 5,
    }


def volume_request(backend: str, name: str = "pvc-1") -> dict[str, Any]:
    return {
        "name": name,
        "capacity_range": {"required_bytes": 16 * MIB},
        "volume_capabilities": [CAPABILITY],
        "parameters": {"backend": backend},
    }


def create(client: Client, backend: str, name: str = "pvc-1") -> str:
    return str(client.CreateVolume(**volume_request(backend, name)).volume.volume_id)


def listed(client: Client) -> list[str]:
    return sorted(entry.volume.volume_id for entry in client.ListVolumes().entries)


def test_a_volume_of_the_same_name_in_each_cluster(cluster: Cluster, other_cluster: Cluster, client: Client) -> None:
    first, second = create(client, "a"), create(client, "b")
    snapshot = client.CreateSnapshot(name="snap-1", source_volume_id=second).snapshot

    assert (first, second, snapshot.snapshot_id) == ("a/pvc-1", "b/pvc-1", "b/snap-1")
    assert listed(client) == [first, second]
    ours, theirs = (one.everything(NAMESPACE) for one in (cluster, other_cluster))
    assert [len([name for name in found if name.startswith("image")]) for found in (ours, theirs)] == [1, 2]

    client.DeleteVolume(volume_id=first)
    assert listed(client) == [second]
    client.DeleteSnapshot(snapshot_id=snapshot.snapshot_id)
    client.DeleteVolume(volume_id=second)
    for one in (cluster, other_cluster):
        one.wait(lambda: one.everything(NAMESPACE) == [], "be empty")  # noqa: B023 - called at once


def test_a_snapshot_of_one_cluster_is_no_source_in_another(client: Client) -> None:
    snapshot = client.CreateSnapshot(name="snap-1", source_volume_id=create(client, "b")).snapshot
    with pytest.raises(grpc.RpcError) as refused:
        client.CreateVolume(
            name="pvc-2",
            volume_capabilities=[CAPABILITY],
            parameters={"backend": "a"},
            volume_content_source={"snapshot": {"snapshot_id": snapshot.snapshot_id}},
        )

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_one_cluster_that_is_down_is_no_trouble_for_the_other(other_cluster: Cluster, client: Client) -> None:
    first, second = create(client, "a"), create(client, "b")
    with frozen(other_cluster, "mon"):
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as silent:
            client.ControllerGetVolume(volume_id=second)
        assert silent.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)
        with pytest.raises(grpc.RpcError) as refused:
            client.DeleteVolume(volume_id=second)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert other_cluster.fsid in refused.value.details()
        third = create(client, "a", "pvc-2")
        client.DeleteVolume(volume_id=first)
        client.Probe()
        assert time.monotonic() - started < IN_TIME

    Orchestrator(lambda: client).call("DeleteVolume", volume_id=second)
    assert listed(client) == [third]


def test_a_driver_that_starts_while_a_cluster_is_down_serves_the_other(
    other_cluster: Cluster, driver: DriverProcess
) -> None:
    with frozen(other_cluster, "mon"):
        client = driver.start()
        assert create(client, "a") == "a/pvc-1"
        with pytest.raises(grpc.RpcError) as refused:
            create(client, "b")
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    assert Orchestrator(lambda: client).call("CreateVolume", **volume_request("b")).volume.volume_id == "b/pvc-1"
    assert listed(client) == ["a/pvc-1", "b/pvc-1"]
    client.close()
