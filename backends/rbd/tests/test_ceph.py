"""How much room a pool has, how the cluster is, and what its manager takes over."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from csi_multi_rbd import rows
from csi_multi_rbd.ceph import Ceph
from csi_multi_rbd.rbd import Rbd
from csi_multi_rbd.rows import Layout
from csi_multi_rbd.statuses import Absent, Unreachable

from .ceph_faults import frozen, over_quota

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from .ceph_commands import Commands

MIB = 2**20
QUOTA = 123 * MIB


def test_a_check_that_is_muted_is_not_told() -> None:
    check = {"summary": {"message": "one"}, "muted": False}
    told = {"fsid": "f", "health": {"status": "HEALTH_WARN", "checks": {"A": check, "B": {**check, "muted": True}}}}

    assert rows.status(told).checks == {"A": "one"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("hashpspool", ""),
        ("hashpspool,nearfull", ""),
        ("full,hashpspool", "pool 'k8s' is full"),
        ("full,full_quota", "pool 'k8s' has reached its quota"),
    ],
)
def test_a_pool_is_full_when_its_flags_say_so(flags: str, told: str) -> None:
    pools = [{"pool_name": "other", "flags_names": "full"}, {"pool_name": "k8s", "flags_names": flags}]

    assert rows.full(pools, "k8s") == told


def test_a_pool_tells_its_room_and_quota(cluster: Commands, config: Config) -> None:
    ceph = Ceph(config)

    before = ceph.room(config.pool)
    cluster.ceph("osd", "pool", "set-quota", config.pool, "max_bytes", str(QUOTA))
    limited = ceph.room(config.pool)
    cluster.ceph("osd", "pool", "set-quota", config.pool, "max_bytes", "0")

    assert before.max_avail > 100 * MIB
    assert before.stored >= 0
    assert (before.quota_bytes, limited.quota_bytes) == (0, QUOTA)


def test_a_pool_that_is_not_there_has_no_room(config: Config) -> None:
    with pytest.raises(Absent, match="no pool 'gone'"):
        Ceph(config).room("gone")


def test_the_cluster_tells_who_it_is_and_how_it_is(cluster: Commands, config: Config) -> None:
    ceph = Ceph(config)

    assert ceph.status().fsid == config.fsid
    with over_quota(cluster):
        assert ceph.status().health == "HEALTH_WARN"
        assert "POOL_FULL" in ceph.status().checks


def test_the_manager_flattens_an_image(cluster: Commands, config: Config) -> None:
    rbd, ceph = Rbd(config), Ceph(config)
    rbd.create("a", MIB, Layout(), {})
    rbd.cut("a", "s")
    rbd.clone("a", "s", "b", Layout())

    assert ceph.flatten_later(rbd.spec("b"))
    until = time.monotonic() + 30
    while rbd.info("b").parent and time.monotonic() < until:
        time.sleep(0.2)

    assert rbd.info("b").parent is None
    while json.loads(cluster.ceph("rbd", "task", "list", "--format", "json")):
        time.sleep(0.2)


def test_a_manager_that_cannot_is_no_error(cluster: Commands, config: Config) -> None:
    ceph = Ceph(config)
    ceph.status()

    assert not ceph.flatten_later(f"{config.pool}/{config.namespace}/gone")
    with frozen(cluster, "mgr"):
        started = time.monotonic()
        assert not ceph.flatten_later(f"{config.pool}/{config.namespace}/gone")
        assert time.monotonic() - started < 20
        assert ceph.status().fsid == config.fsid, "the gate stays open: only the manager is silent"


def test_monitors_that_are_silent_are_not_waited_for_again_at_once(cluster: Commands, config: Config) -> None:
    ceph = Ceph(config)
    with frozen(cluster, "mon"):
        with pytest.raises(Unreachable, match="timed out"):
            ceph.status()
        started = time.monotonic()
        with pytest.raises(Unreachable, match="not tried again so soon"):
            ceph.room(config.pool)
        assert time.monotonic() - started < 0.1
