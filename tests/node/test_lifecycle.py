"""One volume through stage, publish, unpublish and unstage, in every way it can be used."""

from __future__ import annotations

import os

import pytest

from csi_multi.contract import Blank, FailedPrecondition

pytestmark = pytest.mark.root


MiB = 1024 * 1024


SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB}


def tear_down(world, handle="v1"):
    world.unpublish(handle)
    world.unstage(handle)


@pytest.mark.parametrize("fs", SIZES)
def test_bytes_survive_unstage_and_stage(world, fs):
    world.volume(size=SIZES[fs])
    world.stage(fs=fs)
    target = world.publish(fs=fs)
    (target / "kept").write_text("bytes")
    tear_down(world)

    assert not target.exists()
    assert world.loops() == []

    world.stage(fs=fs)
    target = world.publish(fs=fs)

    assert (target / "kept").read_text() == "bytes"
    tear_down(world)


@pytest.mark.parametrize("fs", SIZES)
def test_every_call_may_come_twice(world, fs):
    world.volume(size=SIZES[fs])
    for _ in range(2):
        world.stage(fs=fs)
    for _ in range(2):
        target = world.publish(fs=fs)
    (target / "kept").write_text("bytes")
    world.stage(fs=fs)

    assert (target / "kept").read_text() == "bytes"
    assert world.mounted().count(str(target)) == 1
    for _ in range(2):
        world.unpublish()
    for _ in range(2):
        world.unstage()


@pytest.mark.parametrize("fs", SIZES)
def test_a_read_only_publication_refuses_writes_beside_a_writable_one(world, fs):
    world.volume(size=SIZES[fs])
    world.stage(fs=fs, mode="SINGLE_NODE_MULTI_WRITER", flags=("nosuid",))
    writable = world.publish(fs=fs, mode="SINGLE_NODE_MULTI_WRITER", flags=("nosuid",), target=world.target("rw"))
    target = world.publish(fs=fs, mode="SINGLE_NODE_MULTI_WRITER", flags=("nosuid",), read_only=True)
    (writable / "file").write_text("bytes")

    with pytest.raises(OSError, match="Read-only file system"):
        (target / "file").write_text("other")
    assert (target / "file").read_text() == "bytes"
    assert os.statvfs(target).f_flag & os.ST_NOSUID  # a read-only remount must not lose the other flags
    world.unpublish(target=writable)
    tear_down(world)


@pytest.mark.parametrize("fs", SIZES)
def test_a_read_only_stage_refuses_writes_at_every_layer(world, fs):
    world.volume(size=SIZES[fs])
    world.stage(fs=fs)
    world.unstage()
    staging = world.stage(fs=fs, mode="SINGLE_NODE_READER_ONLY")
    target = world.publish(fs=fs, mode="SINGLE_NODE_READER_ONLY")

    for path in (staging, target):
        with pytest.raises(OSError, match="Read-only file system"):
            (path / "file").write_text("other")
    assert world.device().read_only
    tear_down(world)


@pytest.mark.parametrize("fs", SIZES)
def test_a_clone_is_staged_beside_its_source_and_shows_its_own_data(world, fs):
    world.volume(size=SIZES[fs])
    (world.stage(fs=fs) / "whose").write_text("source")
    world.unstage()
    world.volume("clone", size=SIZES[fs], blank=Blank.NEVER)
    world.sh("cp", "--sparse=always", str(world.backend.image("v1")), str(world.backend.image("clone")))
    source = world.stage(fs=fs)
    clone = world.stage("clone", fs=fs)
    (clone / "whose").write_text("clone")

    assert (source / "whose").read_text() == "source"
    world.unstage("clone")
    world.unstage()


def test_a_block_volume_shows_its_bytes_at_the_target(world):
    world.volume()
    world.stage(fs=None)
    target = world.publish(fs=None)
    with target.open("r+b", buffering=0) as node:
        node.write(b"bytes")
        os.fsync(node.fileno())

    assert world.backend.blank("v1") is Blank.NEVER
    tear_down(world)
    assert world.backend.image("v1").read_bytes()[:5] == b"bytes"
    assert list(world.staging().iterdir()) == []
    assert not target.exists()


@pytest.mark.parametrize("staged", ["SINGLE_NODE_MULTI_WRITER", "SINGLE_NODE_READER_ONLY"])
def test_a_read_only_block_publication_refuses_writes(world, staged):
    world.volume(blank=Blank.NEVER)
    world.stage(fs=None, mode=staged)
    first = world.publish(fs=None, mode="SINGLE_NODE_MULTI_WRITER", read_only=True)
    second = world.publish(fs=None, mode="SINGLE_NODE_MULTI_WRITER", read_only=True, target=world.target("second"))
    world.publish(fs=None, mode="SINGLE_NODE_MULTI_WRITER", read_only=True)  # again: no second layer

    for target in (first, second):
        with pytest.raises(OSError, match=r"Operation not permitted|Read-only"), target.open("r+b", 0) as node:
            node.write(b"other")
    assert len(world.loops()) == (1 if staged == "SINGLE_NODE_READER_ONLY" else 2)
    world.unpublish(target=second)
    with first.open("rb") as node:
        assert node.read(5) == bytes(5)
    tear_down(world)


def test_a_volume_that_was_written_as_block_is_never_formatted(world):
    world.volume()
    world.stage(fs=None)
    world.unstage()

    with pytest.raises(FailedPrecondition, match="never formatted"):
        world.stage()


def test_one_lifecycle_runs_two_commands(world):
    world.volume()
    world.stage()
    world.publish()
    tear_down(world)

    assert world.host.commands == ["blkid", "mkfs.ext4"]
    assert [call[0] for call in world.host.calls] == [
        *("losetup", "blkid", "mkfs.ext4", "mount", "umount", "umount", "losetup")
    ]
