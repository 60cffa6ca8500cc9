"""Capacity: the cluster's own numbers, with replicas and quotas, and no volume that does not fit."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from csi_multi_rbd import capacity
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config, Parameters

from csi_multi.contract import CapacityRequest, OutOfRange, ResourceExhausted, Setting, Unavailable

from .ceph import Cluster
from .volumes import MIB, SIZE, copy, create, delete, everything, snapshot

GIB = 2**30
POOL = "room"
NEAR = 64 * MIB  # metadata comes and goes


@pytest.fixture(scope="module")
def pool(cluster: Cluster) -> str:
    """A pool that is nobody else's, to look at. It is empty: missing copies would be taken off its replicas."""
    cluster.ceph("osd", "pool", "create", POOL, "8")
    cluster.ceph("osd", "pool", "application", "enable", POOL, "rbd")
    cluster.wait(lambda: bool(told(cluster, POOL).get("max_avail")), "count what the pool has")
    return POOL


def available(backend: RbdBackend, data_pool: str = "") -> int:
    return backend.capacity(CapacityRequest(parameters=Parameters(data_pool=data_pool))).available


def told(cluster: Cluster, pool: str) -> dict[str, Any]:
    pools = json.loads(cluster.ceph("df", "detail", "--format", "json"))["pools"]
    stats: dict[str, Any] = next((one["stats"] for one in pools if one["name"] == pool), {})
    return stats


def test_there_is_as_much_room_as_the_cluster_says(cluster: Cluster, backend: RbdBackend) -> None:
    room = told(cluster, cluster.pool)["max_avail"]

    assert 0 < available(backend) <= room
    assert available(backend) == pytest.approx(room, abs=NEAR)


def test_replicas_take_their_room(cluster: Cluster, backend: RbdBackend, pool: str) -> None:
    cluster.ceph("osd", "pool", "set", pool, "size", "2")
    cluster.wait(lambda: told(cluster, pool)["max_avail"] < told(cluster, cluster.pool)["max_avail"] * 0.6, "count")

    assert available(backend, pool) == pytest.approx(available(backend) / 2, abs=NEAR)
    cluster.ceph("osd", "pool", "set", pool, "size", "1", "--yes-i-really-mean-it")
    cluster.wait(cluster.serves, "serve")


def test_a_quota_is_a_limit(cluster: Cluster, backend: RbdBackend, pool: str) -> None:
    cluster.ceph("osd", "pool", "set-quota", pool, "max_bytes", str(100 * MIB))

    assert available(backend, pool) == pytest.approx(100 * MIB, abs=MIB)
    with pytest.raises(ResourceExhausted, match=f"pool {pool}"):
        create(backend, "v", 101 * MIB, data_pool=pool)
    cluster.ceph("osd", "pool", "set-quota", pool, "max_bytes", "0")
    assert everything(cluster, backend) == []


def test_a_report_has_the_bounds_of_one_volume(config: Config, setting: Setting) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, min_size=4 * SIZE, max_size=8 * SIZE), setting)
    report = backend.capacity(CapacityRequest())

    assert (report.minimum, report.maximum) == (4 * SIZE, 8 * SIZE)
    with pytest.raises(OutOfRange):
        create(backend, "v", 8 * SIZE + 1)
    assert create(backend, "v", 1).size == 4 * SIZE
    backend.close()


def test_places_that_do_not_reach_the_cluster_have_no_room(config: Config, setting: Setting) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, topology={"zone": "a"}), setting)

    assert backend.capacity(CapacityRequest(segments={"zone": "b"})).available == 0
    assert backend.capacity(CapacityRequest(segments={"zone": "a"})).available > 0
    backend.close()


@pytest.mark.parametrize("looked", [True, False], ids=["after a look", "at first"])
def test_a_volume_that_there_is_no_room_for_is_refused(cluster: Cluster, backend: RbdBackend, looked: bool) -> None:
    if looked:
        backend.check()
    with pytest.raises(ResourceExhausted, match="overprovision"):
        create(backend, "v", 2**50)
    cut = snapshot(backend, "s", create(backend, "w"))
    with pytest.raises(ResourceExhausted):
        copy(backend, "r", cut, 2**50)

    delete(backend, cut, backend.get_volume("w"))
    assert everything(cluster, backend) == []


def test_as_much_may_be_promised_as_the_operator_says(config: Config, setting: Setting) -> None:
    plain, ten = (RbdBackend(msgspec.structs.replace(config, overprovision=factor), setting) for factor in (1.0, 10.0))

    assert available(ten) == pytest.approx(10 * available(plain), rel=0.05)
    large = 2 * available(plain)
    assert create(ten, "v", large // MIB * MIB).size == large // MIB * MIB
    plain.close()
    ten.close()


def test_an_old_report_is_not_believed(backend: RbdBackend, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.check()
    quota = ("osd", "pool", "set-quota", cluster.pool, "max_bytes")
    stored = told(cluster, cluster.pool)["stored"]
    cluster.ceph(*quota, str(stored + 100 * MIB))
    try:
        create(backend, "believed", 200 * MIB)
        monkeypatch.setattr(capacity, "ADMISSION_TTL", 0.0)
        with pytest.raises(ResourceExhausted):
            create(backend, "v", 200 * MIB)
    finally:
        cluster.ceph(*quota, "0")


def test_a_pool_that_is_not_there_is_the_operators_to_make(backend: RbdBackend) -> None:
    with pytest.raises(Unavailable, match="no pool 'nowhere'"):
        available(backend, "nowhere")
