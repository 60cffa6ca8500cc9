"""What is in a volume's filesystem was written by its user, who must not gain anything on the node by it."""

from __future__ import annotations

import os

import pytest

from csi_multi.contract import AlreadyExists, OpenRequest
from csi_multi.host import mounts
from csi_multi.host.command import LocalHost
from csi_multi.node import thaw

pytestmark = pytest.mark.root

MiB = 1024 * 1024
SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB}
HARDENED = {"nosuid", "nodev"}


@pytest.mark.parametrize("mode", ["SINGLE_NODE_WRITER", "SINGLE_NODE_READER_ONLY"])
def test_a_superblock_that_wants_a_panic_is_mounted_with_another_reaction(world, mode):
    world.volume()
    world.stage()
    world.unstage()
    world.sh("tune2fs", "-e", "panic", str(world.backend.image("v1")))

    mounted = mounts.at(world.stage(mode=mode))
    assert "errors=panic" not in mounted.super_options
    assert "errors=remount-ro" in mounted.super_options
    world.unstage()


@pytest.mark.parametrize("fs", ["ext4", "auto"])
def test_a_filesystem_that_is_mounted_to_be_thawed_is_mounted_like_any_other(world, fs):
    """What kept its device busy has ended meanwhile, so that the kernel reads the superblock anew."""
    world.volume()
    staging = world.stage()
    world.unstage()
    world.sh("tune2fs", "-e", "panic", str(world.backend.image("v1")))
    device = world.backend.open_device(OpenRequest(handle="v1"))
    seen = []

    def unmount(function, *words, **options):
        seen.append(mounts.at(staging))
        return LocalHost().call(function, *words, **options)

    world.host.replaced["umount"] = unmount
    assert not thaw.thaw_unmounted(world.host, "v1", device, staging, fs)
    world.backend.close_device("v1")
    assert "errors=remount-ro" in seen[0].super_options
    assert seen[0].options >= HARDENED


@pytest.mark.parametrize("fs", list(SIZES))
def test_setuid_programs_and_device_nodes_have_no_effect(world, fs):
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    os.mknod(staging / "null", 0o20666, os.makedev(1, 3))
    target = world.publish(fs=fs)

    for path in (staging, target):
        assert mounts.at(path).options >= HARDENED
        with pytest.raises(PermissionError):
            os.close(os.open(path / "null", os.O_RDONLY))
    world.stage(fs=fs)
    world.publish(fs=fs)
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize(
    ("flags", "shown"),
    [(("suid",), {"nodev"}), (("dev",), {"nosuid"}), (("suid", "dev"), set()), (("suid,dev",), set())],
    ids=str,
)
def test_the_class_may_allow_them(world, flags, shown):
    world.volume()
    staging = world.stage(flags=flags)
    target = world.publish(flags=flags)

    for path in (staging, target):
        assert mounts.at(path).options & HARDENED == shown
    world.stage(flags=flags)
    world.publish(flags=flags)
    world.unpublish()
    world.unstage()


@pytest.mark.parametrize("flags", [("defaults",), ("noexec", "defaults"), ("defaults,noatime,relatime",)], ids=str)
def test_the_flag_defaults_allows_nothing(world, flags):
    world.volume()
    staging = world.stage(flags=flags)
    target = world.publish(flags=flags)

    for path in (staging, target):
        assert mounts.at(path).options >= HARDENED | ({"noexec"} & set(flags))
    world.stage(flags=flags)
    world.publish(flags=flags)
    world.unpublish()
    world.unstage()


def test_a_volume_that_an_earlier_version_staged_stays_in_use(world):
    world.volume()
    staging = world.stage()
    world.sh("mount", "-o", "remount,bind,suid,dev", str(staging))
    assert not mounts.at(staging).options & HARDENED

    world.stage()
    target = world.publish()
    world.publish()
    assert not mounts.at(target).options & HARDENED
    with pytest.raises(AlreadyExists, match="with other mount flags"):
        world.stage(flags=("noexec",))
    world.unpublish()
    world.unstage()
