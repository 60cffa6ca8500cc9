"""What LVM reports becomes health entries with a reason and a remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from csi_multi_lvm import labels
from csi_multi_lvm.config import Config
from csi_multi_lvm.health import group_health, volume_health
from csi_multi_lvm.report import Group, LogicalVolume, Report

from csi_multi.contract import Health, StorageHealth

OWNER = labels.owner_tag("d", "c")
CONFIG = Config(volume_group="vg0", thin_pool="pool0")
POOL = LogicalVolume(name="pool0", uuid="", size=2**30, layout=frozenset({"thin", "pool"}), zeroing=True)
GROUP = Group(name="vg0", extent_size=2**22, extents=100, free=50, metadata_free=2**20)


def volume(*layout: str, **facts: Any) -> LogicalVolume:
    return LogicalVolume(name="csi-v", uuid="", size=2**22, layout=frozenset(layout), **facts)


def report(*volumes: LogicalVolume, **group: int) -> Report:
    return Report(group=replace(GROUP, **group), volumes={one.name: one for one in (POOL, *volumes)}, disks=())


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        (volume("linear", health="partial"), Health.INACCESSIBLE, "DisksMissing"),
        (volume("raid", "raid1", health="partial"), Health.DEGRADED, "RaidDegraded"),
        (volume("raid", "raid1", health="refresh needed"), Health.DEGRADED, "RaidDegraded"),
        (volume("linear", suspended=True), Health.INACCESSIBLE, "Suspended"),
    ],
)
def test_a_problem_of_a_volume_is_reported(found: LogicalVolume, status: Health, reason: str) -> None:
    (entry,) = volume_health(report(found), found)
    assert (entry.status, entry.reason) == (status, reason)
    assert entry.message.count("csi-v") == 1


@pytest.mark.parametrize("facts", [{"data_percent": 100.0}, {"metadata_percent": 100.0}, {"health": "out_of_data"}])
def test_a_full_pool_is_a_problem_of_its_volumes_only(facts: dict[str, Any]) -> None:
    found = volume("thin", "sparse", pool="pool0")
    full = replace(POOL, **facts)
    everything = Report(group=GROUP, volumes={"pool0": full, "csi-v": found}, disks=())

    assert [entry.reason for entry in volume_health(everything, found)] == ["PoolFull"]
    assert volume_health(everything, volume("linear")) == ()


def test_a_healthy_group_and_volume_have_no_entries() -> None:
    found = volume("raid", "raid1", tags=frozenset({OWNER}))
    assert volume_health(report(found), found) == ()
    assert group_health(report(found), CONFIG, OWNER) == ()


@pytest.mark.parametrize(
    ("changed", "reason", "text"),
    [
        (report(missing=2), "DisksMissing", "2 physical volumes of vg0 are missing"),
        (report(metadata_free=100), "MetadataAlmostFull", "vg0 has 100 bytes of metadata left"),
        (report(replace(POOL, data_percent=90.0)), "PoolAlmostFull", "thin pool pool0 is 90.0 % full"),
        (report(replace(POOL, zeroing=False)), "PoolNotZeroing", "lvchange --zero y"),
        (report(replace(POOL, layout=frozenset({"linear"}))), "PoolMissing", "vg0 has no thin pool pool0"),
        (report(volume("linear", invalid=True, tags=frozenset({OWNER}))), "SnapshotOverflowed", "csi-v"),
        (report(volume("linear", tags=frozenset({OWNER, labels.INVALID}))), "SnapshotOverflowed", "csi-v"),
    ],
)
def test_a_problem_of_the_group_is_reported(changed: Report, reason: str, text: str) -> None:
    (entry,) = group_health(changed, CONFIG, OWNER)
    assert (entry.status, entry.reason) == (StorageHealth.STORAGE_DEGRADED, reason)
    assert text in entry.message


def test_somebody_elses_overflowed_snapshot_is_not_reported() -> None:
    assert group_health(report(volume("linear", invalid=True)), CONFIG, OWNER) == ()


def test_a_pool_is_no_concern_of_an_instance_without_one() -> None:
    thick_only = Config(volume_group="vg0")
    assert group_health(report(replace(POOL, zeroing=False)), thick_only, OWNER) == ()
