"""Staging: how the device is opened, and what is refused."""

from __future__ import annotations

import os

import pytest

from csi_multi.contract import (
    AccessMode,
    AlreadyExists,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
)
from csi_multi.host import mounts

pytestmark = pytest.mark.root


MiB = 1024 * 1024


SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB}


def test_a_backend_learns_how_the_volume_is_to_be_used(world):
    world.volume()
    world.stage(fs="ext4")

    asked = world.backend.opening.capability
    assert (asked.mode, asked.mount.fs_type) == (AccessMode.SINGLE_NODE_WRITER, "ext4")
    world.unstage()


def test_a_blank_volume_is_not_formatted_by_a_read_only_stage(world):
    world.volume()
    before = world.digest()

    with pytest.raises(FailedPrecondition, match="stage it once with an access mode that allows writes"):
        world.stage(mode="SINGLE_NODE_READER_ONLY")
    assert world.digest() == before
    assert world.loops() == []  # a final refusal closes what it opened


def test_a_device_left_open_read_only_is_opened_again_to_write(world):
    world.volume()
    world.stage()
    world.unstage()
    world.stage(mode="SINGLE_NODE_READER_ONLY")
    world.sh("umount", str(world.staging()))

    (world.stage() / "file").write_text("bytes")
    world.unstage()


def test_an_unnamed_filesystem_means_the_existing_one_otherwise_the_default(world):
    world.volume()
    world.volume("other", size=SIZES["btrfs"])
    world.stage("other", fs="btrfs")
    world.unstage("other")
    world.stage(fs="")
    world.stage("other", fs="")

    types = [mounts.at(world.staging(handle)).fs_type for handle in ("v1", "other")]
    assert types == ["ext4", "btrfs"]
    world.unstage()
    world.unstage("other")


@pytest.mark.parametrize("fs", ["ext3", "ntfs", "../ext4"])
def test_an_unsupported_filesystem_is_refused_before_anything_is_opened(world, fs):
    world.volume()

    with pytest.raises(InvalidArgument, match="supported: ext4, xfs, btrfs"):
        world.stage(fs=fs)
    assert world.host.calls == []


def test_options_reach_mkfs(world):
    world.volume()
    staging = world.stage(context={"fs.blockSize": "1024", "fs.numberOfInodes": "512", "other": "x"})

    assert os.statvfs(staging).f_bsize == 1024
    assert os.statvfs(staging).f_files == 512
    world.unstage()


def test_a_volume_that_does_not_exist_is_not_found(world):
    for call in (world.stage, world.publish):
        with pytest.raises(NotFound):
            call("nobody")
    world.unpublish("nobody")
    world.unstage("nobody")


def outcome(call):
    try:
        call()
    except (AlreadyExists, FailedPrecondition) as error:
        return type(error)
    return "ok"


@pytest.fixture(params=["ext4", None], ids=["mount", "block"])
def fs(request):
    return request.param


@pytest.mark.parametrize(
    "different", [{"fs": "xfs"}, {"fs": None}, {"flags": ("noexec",)}, {"flags": ("ro",)}], ids=str
)
def test_staged_with_another_capability_already_exists(world, different):
    world.volume()
    world.stage()

    assert outcome(lambda: world.stage(**different)) is AlreadyExists
    assert outcome(lambda: world.stage(fs="")) == "ok"
    world.unstage()
    world.stage(fs=None)
    assert outcome(world.stage) is AlreadyExists
    world.unstage()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_published_volume_is_not_unstaged(world, fs, read_only):
    world.volume()
    world.stage(fs=fs)
    target = world.publish(fs=fs, read_only=read_only)

    with pytest.raises(InUse, match=r"still published at .*/target"):
        world.unstage()
    assert str(target) in world.mounted()
    world.unpublish()
    world.unstage()


def test_a_second_staging_path_shares_the_filesystem(world):
    world.volume()
    first = world.stage()
    (first / "file").write_text("bytes")
    second = world.stage(staging=world.staging("moved"))

    assert (second / "file").read_text() == "bytes"
    with pytest.raises(FailedPrecondition, match="holds ext4, not xfs"):
        world.stage(staging=world.staging("third"), fs="xfs")
    assert world.mounted() == [str(first), str(second)]
    world.sh("umount", str(first))
    world.unstage(staging=second)


@pytest.mark.root
def test_the_flag_ro_stages_read_only(world):
    world.volume()
    world.stage()
    world.unstage()
    staging = world.stage(flags=("ro",))

    with pytest.raises(OSError, match="Read-only"):
        (staging / "file").touch()
    assert world.device().read_only
    world.unstage()
