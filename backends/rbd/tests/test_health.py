"""Health: the cluster's health is reported for every volume, and by every node."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from csi_multi_rbd import health
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config

from csi_multi.contract import FailedPrecondition, Health, NotFound, PageRequest, Setting, StorageHealth, Unavailable

from .ceph import Cluster
from .ceph_faults import full, over_quota, without
from .volumes import create

pytestmark = pytest.mark.ceph  # some start a cluster of their own

NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster to break. Its pool is used as a whole: a full one cannot be read in a namespace."""
    with Cluster(tmp_path_factory.mktemp("frail")) as cluster:
        yield cluster


@pytest.fixture
def watcher(frail: Cluster, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> Iterator[RbdBackend]:
    monkeypatch.setattr(health, "REPORT_TTL", 0.0)
    config = Config(
        monitors=frail.monitors,
        fsid=frail.fsid,
        pool=frail.pool,
        user=frail.user,
        keyring=str(frail.keyring),
        connect_seconds=2,
        command_seconds=5,
    )
    backend = RbdBackend(config, setting)
    yield backend
    backend.close()


def told(backend: RbdBackend) -> set[tuple[Health, str]]:
    page = backend.list_volume_health(PageRequest(), {})
    return {(entry.status, entry.reason) for one in page.items for entry in one.entries}


def test_a_healthy_cluster_has_nothing_to_say(backend: RbdBackend) -> None:
    volume = create(backend, "v")

    assert backend.volume_health(volume.handle, {}) == ()
    assert backend.list_volume_health(PageRequest(), {}).items == ()
    assert backend.node_storage_health({}) == ()
    with pytest.raises(NotFound):
        backend.volume_health("nothing", {})


def test_a_pool_at_its_quota_is_said_of_each_of_its_volumes(frail: Cluster, watcher: RbdBackend) -> None:
    volume = watcher.find_volume("v") if _has(watcher) else create(watcher, "v")
    with over_quota(frail):
        entries = watcher.volume_health(volume.handle, {})
    assert {entry.reason for entry in entries} == {"PoolFull"}
    assert watcher.volume_health(volume.handle, {}) == ()


def test_full_disks_are_said_of_each_volume(frail: Cluster, watcher: RbdBackend) -> None:
    volume = watcher.find_volume("v") if _has(watcher) else create(watcher, "v")
    with full(frail):
        found = {(entry.status, entry.reason) for entry in watcher.volume_health(volume.handle, {})}
    assert (Health.INACCESSIBLE, "DisksFull") in found


def test_disks_that_are_down_are_said_though_no_image_can_be_read(frail: Cluster, watcher: RbdBackend) -> None:
    if not _has(watcher):
        create(watcher, "v")
    with without(frail, "osd"):
        entries = watcher.main.health.volume()
        (trouble,) = watcher.node_storage_health({}) or (None,)
    found = {(entry.status, entry.reason) for entry in entries}

    assert (Health.DEGRADED, "DisksDown") in found or (Health.INACCESSIBLE, "DataUnavailable") in found
    assert trouble is None or trouble.status is StorageHealth.STORAGE_DEGRADED


def test_an_unreachable_cluster_is_said_by_its_nodes(frail: Cluster, watcher: RbdBackend) -> None:
    with without(frail, "mon"):
        (trouble,) = watcher.node_storage_health({})
        with pytest.raises(Unavailable):
            watcher.check()

    assert (trouble.status, trouble.reason) == (StorageHealth.STORAGE_UNREACHABLE, "ClusterUnreachable")
    assert frail.fsid in trouble.message


def test_monitors_of_another_cluster_are_refused(config: Config, setting: Setting) -> None:
    backend = RbdBackend(msgspec.structs.replace(config, fsid=NOBODY), setting)
    with pytest.raises(FailedPrecondition, match=f"the configuration names {NOBODY}"):
        backend.check()
    (trouble,) = backend.node_storage_health({})

    assert config.fsid in trouble.message
    backend.close()


def _has(backend: RbdBackend) -> bool:
    try:
        backend.find_volume("v")
    except NotFound:
        return False
    return True
