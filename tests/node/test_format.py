"""Only a device that is proven blank is formatted: a corpus of devices that hold something, and none is changed."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from csi_multi.contract import Blank, FailedPrecondition, Unavailable
from csi_multi.host.command import LocalHost
from csi_multi.node import blank_check

pytestmark = pytest.mark.root


MiB = 1024 * 1024


SIZE = 128 * MiB


XFS_SIZE = 320 * MiB


def noise(offset, length=4096):
    def make(world, image):
        with image.open("r+b") as file:
            file.seek(offset % SIZE)
            file.write(random.Random(1).randbytes(length))

    return make


def command(*argv, stdin=None):
    def make(world, image):
        world.sh(*argv, str(image), input=stdin)

    return make


def lvm(world, image):
    loop = world.attach(image)
    world.sh("pvcreate", "--devices", loop, "-q", loop)
    world.detach(loop)


def luks(world, image):
    options = ["--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]
    world.sh("cryptsetup", "luksFormat", *options, str(image), input="secret")


def ambivalent(world, image):
    other = image.with_suffix(".other")
    other.touch()
    os.truncate(other, 320 * MiB)
    world.sh("mkfs.xfs", "-q", str(other))
    world.sh("mkfs.btrfs", "-q", str(image))
    with image.open("r+b") as file, other.open("rb") as xfs:
        file.write(xfs.read(4096))  # in the first block, where btrfs has nothing


def sample_offset(index):
    return (
        (SIZE - blank_check.SAMPLE_BYTES)
        * index
        // (blank_check.SAMPLE_COUNT - 1)
        // blank_check.SAMPLE_BYTES
        * blank_check.SAMPLE_BYTES
    )


CORPUS = {
    "xfs": (command("mkfs.xfs", "-q"), "holds xfs"),
    "btrfs": (command("mkfs.btrfs", "-q"), "holds btrfs"),
    "ext3": (command("mkfs.ext3", "-q"), "holds ext3"),
    "swap": (command("mkswap"), "holds swap"),
    "luks": (luks, "holds crypto_LUKS"),
    "lvm": (lvm, "holds LVM2_member"),
    "gpt": (command("sfdisk", "-q", stdin="label: gpt\n,\n"), r"a partition table \(gpt\)"),
    "mbr": (command("sfdisk", "-q", stdin="label: dos\n,\n"), r"a partition table \(dos\)"),
    "two signatures": (ambivalent, "blkid gives no clear answer"),
    "random head": (noise(0), "data without a signature"),
    "random tail": (noise(-4096), "data without a signature"),
    "random sector in the tail": (noise(-MiB, 512), "data without a signature"),
    "random sector in the head": (noise(MiB - 512, 512), "data without a signature"),
    **{
        f"random at sample {index}": (noise(sample_offset(index)), "data without a signature")
        for index in (1, 2, 31, 32, 61, 62)
    },
}


@pytest.mark.parametrize("state", [Blank.ZEROED, Blank.NEVER])
@pytest.mark.parametrize("name", CORPUS)
def test_a_device_that_holds_anything_else_is_refused_and_unchanged(world, name, state):
    make, message = CORPUS[name]
    world.volume(size=XFS_SIZE if name == "xfs" else SIZE, blank=state)
    make(world, world.backend.image("v1"))
    before = world.digest()

    expected = message if state is Blank.ZEROED or "without" not in message else "never formatted"
    with pytest.raises(FailedPrecondition, match=expected) as refusal:
        world.stage(fs="ext4")
    assert "'v1'" in str(refusal.value)
    assert world.digest() == before
    assert world.backend.blank("v1") is state
    assert (world.mounted(), world.loops()) == ([], [])


@pytest.mark.parametrize("state", [Blank.ZEROED, Blank.STAMPED, Blank.INTERRUPTED])
def test_a_blank_device_is_formatted(world, state):
    world.volume(blank=state)

    (world.stage() / "file").write_text("bytes")
    assert world.backend.blank("v1") is Blank.NEVER
    world.unstage()


def test_a_blank_copy_is_refused_and_unchanged(world):
    world.volume(blank=Blank.NEVER)
    before = world.digest()

    with pytest.raises(FailedPrecondition, match="was used before or is a copy"):
        world.stage()
    assert world.digest() == before


def test_a_stamp_suffices_where_storage_does_not_zero(world):
    world.volume(size=SIZE, blank=Blank.STAMPED)
    noise(5 * MiB)(world, world.backend.image("v1"))

    (world.stage() / "file").write_text("bytes")
    world.unstage()


@pytest.mark.parametrize("name", ["luks", "lvm", "gpt", "xfs", "swap"])
def test_a_stamp_does_not_suffice_against_a_signature(world, name):
    make, message = CORPUS[name]
    world.volume(size=XFS_SIZE, blank=Blank.STAMPED)
    make(world, world.backend.image("v1"))
    before = world.digest()

    with pytest.raises(FailedPrecondition, match=message):
        world.stage()
    assert world.digest() == before


@pytest.mark.parametrize("fs", ["ext4", "xfs", "btrfs"])
def test_the_wanted_filesystem_is_used_as_it_is(world, fs):
    world.volume(size=XFS_SIZE)
    command(f"mkfs.{fs}", "-q")(world, world.backend.image("v1"))

    world.stage(fs=fs)
    assert not any("mkfs" in call[0] for call in world.host.calls)
    assert world.backend.blank("v1") is Blank.NEVER
    world.unstage()


def test_another_device_than_the_proven_one_is_refused(world):
    world.volume()
    describe = type(world.backend).device

    class Confused(type(world.backend)):
        def device(self, handle, loop):
            return replace(describe(self, handle, loop), proof={"loop/backing_file": "/somewhere/else"})

    world.backend = Confused(world.backend.config, world.backend.setting)
    before = world.digest()

    for fs in ("ext4", None):
        with pytest.raises(FailedPrecondition, match="is not the expected device"):
            world.stage(fs=fs)
    assert world.digest() == before


def test_a_damaged_filesystem_is_not_mounted(world):
    world.volume()
    world.stage()
    world.unstage()
    with world.backend.image("v1").open("r+b") as file:
        file.seek(1024 + 1024)
        file.write(random.Random(2).randbytes(64 * 1024))  # group descriptors, bitmaps, inode tables

    with pytest.raises(FailedPrecondition, match="needs repair by hand: e2fsck exited with status"):
        world.stage()
    assert (world.mounted(), world.loops()) == ([], [])


def test_mkfs_that_finds_the_device_busy_is_not_final(world):
    world.volume()
    holder = []

    def mkfs(*argv, **options):
        if not holder:
            holder.append(os.open(argv[-1], os.O_RDWR | os.O_EXCL))
        return LocalHost().run(*argv, **options)

    world.host.replaced["mkfs.ext4"] = mkfs
    with pytest.raises(Unavailable, match="in use"):
        world.stage()
    os.close(holder[0])
    world.stage()
    world.unstage()


def test_a_used_device_decides_where_no_filesystem_is_named(world):
    world.volume(size=XFS_SIZE)
    world.stage(fs="xfs")
    world.unstage()

    world.stage(fs="")  # the default is ext4
    world.unstage()
    with pytest.raises(FailedPrecondition, match="holds xfs, not ext4 as requested"):
        world.stage(fs="ext4")


def test_a_new_device_does_not_decide_although_no_filesystem_is_named(world):
    world.volume(size=XFS_SIZE)
    command("mkfs.xfs", "-q")(world, world.backend.image("v1"))

    with pytest.raises(FailedPrecondition, match="holds xfs, not ext4 as requested"):
        world.stage(fs="")
