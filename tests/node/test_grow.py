"""Growing a volume at stage and while it is in use."""

from __future__ import annotations

import os

import pytest

from csi_multi.contract import (
    FailedPrecondition,
    SizeRange,
    Unavailable,
)
from csi_multi.host.command import LocalHost
from csi_multi.host.privilege import LinuxCapability, held

pytestmark = pytest.mark.root


MiB = 1024 * 1024


SIZES = {"ext4": 64 * MiB, "xfs": 320 * MiB, "btrfs": 256 * MiB}


def resize(world, size, handle="v1"):
    os.truncate(world.backend.image(handle), size)


def total(world, path, handle="v1"):
    return world.usage(handle, path)[0].total


def expand(world, path, size=0):
    return world.expand("v1", path, SizeRange(required=size))


@pytest.mark.parametrize("fs", SIZES)
def test_a_filesystem_grows_at_stage(world, fs):
    """A clone larger than its source, or an expand while the volume was not in use."""
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    (staging / "file").write_text("bytes")
    before = total(world, staging)
    world.unstage()
    resize(world, 2 * SIZES[fs])
    world.stage(fs=fs)

    assert total(world, staging) > 1.8 * before
    assert (staging / "file").read_text() == "bytes"
    world.host.calls.clear()
    world.stage(fs=fs)
    # Nothing is left to grow, so no command runs; xfs tells its size late, and is asked in vain.
    assert [call[0] for call in world.host.calls] == (["xfs_growfs"] if fs == "xfs" else [])
    world.unstage()


@pytest.mark.parametrize("fs", SIZES)
@pytest.mark.parametrize("where", ["staging", "target", "read-only target"])
def test_a_filesystem_grows_in_use(world, fs, where):
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    target = world.publish(fs=fs, read_only=where == "read-only target")
    before = total(world, staging)
    resize(world, 2 * SIZES[fs])
    path = staging if where == "staging" else target

    if fs == "ext4" and not held(LinuxCapability.CAP_SYS_RESOURCE):
        with pytest.raises(FailedPrecondition, match="CAP_SYS_RESOURCE"):
            expand(world, path, 2 * SIZES[fs])
    else:
        for _ in range(2):
            assert expand(world, path, 2 * SIZES[fs]) == 2 * SIZES[fs]
        assert total(world, path) > 1.8 * before
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_block_volume_grows_in_use(world, read_only):
    world.volume()
    world.stage(fs=None)
    target = world.publish(fs=None, read_only=read_only)
    resize(world, 64 * MiB)

    assert expand(world, target, 64 * MiB) == 64 * MiB
    with target.open("rb") as node:
        assert node.seek(0, os.SEEK_END) == 64 * MiB
    world.unpublish()
    world.unstage()


def test_small_btrfs_cannot_grow_to_what_the_kernel_refuses(world):
    world.volume(size=128 * MiB)
    staging = world.stage(fs="btrfs")
    resize(world, 192 * MiB)

    with pytest.raises(FailedPrecondition, match="cannot grow to less than 268435456 bytes"):
        expand(world, staging)
    world.unstage()
    world.stage(fs="btrfs")  # and is of use nevertheless
    world.unstage()


@pytest.mark.parametrize("context", [{"fs.ext4BigAlloc": "true"}], ids=str)
def test_a_volume_whose_filesystem_cannot_grow_unmounted_is_staged_at_its_old_size(world, monkeypatch, caplog, context):
    """resize2fs refuses bigalloc unmounted. Without CAP_SYS_RESOURCE it cannot grow mounted either."""
    monkeypatch.setattr("csi_multi.node.grow.held", lambda _: False)
    world.volume(size=SIZES["ext4"])
    staging = world.stage(context=context)
    (staging / "file").write_text("bytes")
    before = total(world, staging)
    world.unstage()
    resize(world, 2 * SIZES["ext4"])

    world.stage(context=context)
    assert (staging / "file").read_text() == "bytes"
    assert total(world, staging) == before
    assert "resize2fs exited with status 1" in caplog.text
    world.unstage()


def test_an_unmounted_growth_that_was_killed_is_tried_again(world, monkeypatch):
    monkeypatch.setattr("csi_multi.node.grow.held", lambda _: False)
    world.volume(size=SIZES["ext4"])
    staging = world.stage()
    before = total(world, staging)
    world.unstage()
    resize(world, 2 * SIZES["ext4"])
    world.host.replaced["resize2fs"] = lambda *_, **more: LocalHost().run("sh", "-c", "kill -9 $$", **more)

    with pytest.raises(Unavailable):
        world.stage()
    world.host.replaced.clear()
    world.stage()
    assert total(world, staging) > 1.8 * before
    world.unstage()


def test_a_size_the_node_does_not_see_yet_is_retryable(world):
    world.volume()
    staging = world.stage()

    with pytest.raises(Unavailable, match="not yet the 67108864 requested"):
        expand(world, staging, 64 * MiB)
    world.unstage()


def test_a_read_only_volume_does_not_grow(world):
    world.volume()
    world.stage()
    world.unstage()
    staging = world.stage(mode="SINGLE_NODE_READER_ONLY")

    with pytest.raises(FailedPrecondition, match="read-only"):
        expand(world, staging)
    world.unstage()
