"""Usage and health of a volume as its node reports them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from csi_multi.contract import (
    Health,
    HealthEntry,
    NodeHealthReporter,
    NotFound,
    SizeRange,
)

pytestmark = pytest.mark.root


MiB = 1024 * 1024


SIZES = {"ext4": 64 * MiB, "xfs": 320 * MiB, "btrfs": 256 * MiB}


def total(world, path, handle="v1"):
    return world.usage(handle, path)[0].total


def expand(world, path, size=0):
    return world.expand("v1", path, SizeRange(required=size))


@pytest.mark.parametrize("fs", SIZES)
def test_usage_adds_up(world, fs):
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    target = world.publish(fs=fs)
    (staging / "file").write_bytes(os.urandom(8 * MiB))
    os.sync()

    for path in (staging, target):
        usage = world.usage("v1", path)
        assert [entry.unit for entry in usage] == ["bytes"] + (["inodes"] if fs != "btrfs" else [])
        assert all(0 <= entry.used + entry.available <= entry.total for entry in usage)
        assert 8 * MiB <= usage[0].used < usage[0].total <= SIZES[fs]
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize("read_only", [False, True])
def test_usage_of_a_block_volume_is_its_size(world, read_only):
    world.volume()
    staging = world.stage(fs=None)
    target = world.publish(fs=None, read_only=read_only)

    for path in (staging, staging / "device", target):
        (usage,) = world.usage("v1", path)
        assert (usage.unit, usage.total, usage.used, usage.available) == ("bytes", 32 * MiB, None, None)
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize("path", ["some/path", "", "/", "/nowhere", "/proc", "bad\0path", "/x" * 4000, "other"])
def test_a_volume_that_is_not_at_the_path_is_not_found(world, path):
    world.volume()
    world.volume("other")
    staging = world.stage()
    other = world.stage("other")
    wanted = other if path == "other" else type(staging)(path)

    for call in (lambda: total(world, wanted), lambda: expand(world, wanted)):
        with pytest.raises(NotFound, match="'v1' is neither staged nor published"):
            call()
    with pytest.raises(NotFound, match="does not exist"):
        total(world, staging, "nobody")
    world.unstage("other")
    world.unstage()
    with pytest.raises(NotFound):
        total(world, staging)


def health(world):
    return [(entry.status, entry.reason) for entry in world.health("v1")]


def test_a_volume_in_order_is_healthy(world):
    world.volume()
    assert health(world) == []
    world.stage()
    world.publish(read_only=True)
    assert health(world) == []
    world.unpublish()
    world.unstage()


def test_an_unknown_volume_is_not_found(world):
    with pytest.raises(NotFound):
        health(world)


def test_a_filesystem_that_stopped_writing_is_degraded(world):
    world.volume()
    staging = world.stage()
    world.publish()
    world.sh("mount", "-o", "remount,abort", str(staging))

    assert health(world) == [(Health.DEGRADED, "FilesystemReadOnly")]  # once, though two mounts show it
    world.unpublish()
    world.unstage()


def test_a_device_that_is_another_one_now_is_inaccessible(world):
    world.volume()
    world.stage()
    find = world.backend.find_device
    world.backend.find_device = lambda handle: replace(find(handle), proof={"loop/backing_file": "/else"})
    assert health(world) == [(Health.INACCESSIBLE, "DeviceMismatch")]
    world.backend.find_device = lambda handle: replace(find(handle), path=world.directory / "gone")
    assert health(world) == [(Health.INACCESSIBLE, "DeviceMissing")]
    world.backend.find_device = find
    world.unstage()


def test_findings_of_the_backend_come_along_once(world):
    entries = (
        HealthEntry(status=Health.DEGRADED, reason="Slow", message="first"),
        HealthEntry(status=Health.DEGRADED, reason="Slow", message="second"),
        HealthEntry(status=Health.DATA_LOSS, reason="Slow", message="third"),
    )

    class Reporting(type(world.backend), NodeHealthReporter):
        def node_volume_health(self, handle):
            return entries

        def node_storage_health(self, secrets):
            return ()

    world.volume()
    world.backend = Reporting(world.backend.config, world.backend.setting)

    assert world.health("v1") == (entries[0], entries[2])
