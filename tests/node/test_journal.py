"""A copy of a live volume has a journal to replay; it is staged read-only all the same, where that is safe."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from csi_multi.contract import AccessMode, Blank, FailedPrecondition, Unavailable
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root

MiB = 1024 * 1024
SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB}
READER = "SINGLE_NODE_READER_ONLY"


@pytest.fixture(params=list(SIZES))
def fs(request):
    return request.param


def copy_of_a_live_volume(world, fs, handle="copy"):
    """As storage copies it at one moment, or as a crash leaves it."""
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    (staging / "before").write_text("bytes")
    os.sync()
    for number in range(20):
        descriptor = os.open(staging / f"file{number}", os.O_CREAT | os.O_RDWR)
        os.write(descriptor, b"bytes" * 1000)
        os.fsync(descriptor)
        os.close(descriptor)
    world.volume(handle, SIZES[fs], blank=Blank.NEVER)
    world.sh("cp", "--sparse=always", str(world.backend.image("v1")), str(world.backend.image(handle)))
    world.unstage()
    return handle


@pytest.mark.parametrize("how", [{"mode": READER}, {"flags": ("ro",)}], ids=["mode", "flag"])
def test_a_copy_of_a_live_volume_is_staged_read_only(world, fs, how):
    copy = copy_of_a_live_volume(world, fs)

    staging = world.stage(copy, fs=fs, **how)
    assert (staging / "file19").read_bytes() == b"bytes" * 1000
    assert (staging / "before").read_text() == "bytes"
    assert world.device(copy).read_only
    with pytest.raises(OSError, match="Read-only"):
        (staging / "new").touch()
    assert [one.read_only for one in mounts.table() if one.target == str(staging)] == [True]
    world.stage(copy, fs=fs, **how)
    world.unstage(copy)


@pytest.mark.parametrize("fs", ["ext4", "xfs"])  # repaired, and mounted for a moment
def test_it_is_repeated_from_every_step_at_which_the_driver_dies(world, fs):
    copy = copy_of_a_live_volume(world, fs)
    image = world.backend.image(copy)
    world.sh("cp", "--sparse=always", str(image), str(image.with_suffix(".dirty")))
    for steps in range(60):
        world.sh("cp", "--sparse=always", str(image.with_suffix(".dirty")), str(image))
        world.host.left = steps
        try:
            staging = world.stage(copy, fs=fs, mode=READER)
        except world.Killed:
            world.host.left = None
            staging = world.stage(copy, fs=fs, mode=READER)
            died = True
        else:
            died = False
        world.host.left = None
        assert (staging / "file19").read_bytes() == b"bytes" * 1000
        assert world.device(copy).read_only
        world.unstage(copy)
        if not died:
            break
    assert steps > 6


class AlwaysReadOnly:
    """Storage that was attached to this node for reading only."""

    def __init__(self, world):
        opening = world.backend.open_device
        world.backend.open_device = lambda request: opening(replace(request, read_only=True))


def test_a_device_that_may_only_be_read_is_not_written(world, fs):
    copy = copy_of_a_live_volume(world, fs)
    AlwaysReadOnly(world)
    before = world.digest(copy)

    with pytest.raises(FailedPrecondition, match="its storage lets this node only read it; stage the volume once"):
        world.stage(copy, fs=fs, mode=READER)
    assert world.digest(copy) == before
    assert (world.mounted(), world.loops()) == ([], [])


def test_a_volume_that_other_nodes_may_use_is_not_written(world, fs):
    copy = copy_of_a_live_volume(world, fs)
    before = world.digest(copy)

    with pytest.raises(FailedPrecondition, match="other nodes may use it at the same time"):
        world.stage(copy, fs=fs, mode="MULTI_NODE_READER_ONLY")
    assert world.digest(copy) == before


def test_storage_that_keeps_other_nodes_away_is_asked_to(world, fs):
    copy = copy_of_a_live_volume(world, fs)
    asked = []
    opening = world.backend.open_device

    def open_device(request):
        asked.append((request.read_only, request.capability.mode))
        return opening(request)

    world.backend.open_device, world.backend.opens_exclusively = open_device, True
    world.stage(copy, fs=fs, mode="MULTI_NODE_READER_ONLY")

    many = (True, AccessMode.MULTI_NODE_READER_ONLY)
    assert asked == [many, (False, AccessMode.SINGLE_NODE_WRITER), many]
    world.unstage(copy)


def test_a_device_that_is_in_use_on_this_node_is_not_written(world, fs):
    """By a mount in another mount namespace, which is not in our mount table."""
    copy = copy_of_a_live_volume(world, fs)
    opening, holders = world.backend.open_device, []

    def open_device(request):
        device = opening(request)
        if not request.read_only:
            holders.append(os.open(device.path, os.O_RDONLY | os.O_EXCL))
        return device

    world.backend.open_device = open_device
    before = world.digest(copy)
    with pytest.raises(Unavailable, match="in use on this node"):
        world.stage(copy, fs=fs, mode=READER)
    assert world.digest(copy) == before
    os.close(holders.pop())
    world.backend.open_device = opening
    world.stage(copy, fs=fs, mode=READER)
    world.unstage(copy)


def test_a_volume_without_a_note_is_not_written(world):
    copy = copy_of_a_live_volume(world, "ext4")
    world.backend.note(copy, Blank.ZEROED)
    before = world.digest(copy)

    with pytest.raises(FailedPrecondition, match="no note on the volume says that it was used"):
        world.stage(copy, mode=READER)
    assert world.digest(copy) == before


class FilesystemOfImages:
    """A filesystem of its own that holds one volume's image. While it is frozen, writes to the volume's device wait."""

    def __init__(self, world, handle):
        self.world, self.path = world, world.directory / "filesystem"
        self.path.mkdir()
        disk = world.directory / "disk"
        with disk.open("wb") as file:
            file.truncate(600 * MiB)
        world.sh("mkfs.ext4", "-q", str(disk))
        world.sh("mount", "-o", "loop", str(disk), str(self.path))
        self.image = self.path / world.backend.image(handle).name
        world.sh("cp", "--sparse=always", str(world.backend.image(handle)), str(self.image))
        world.backend.image(handle).unlink()
        image = world.backend.image
        world.backend.image = lambda wanted: self.image if wanted == handle else image(wanted)
        world.sh("cp", str(image(handle).with_suffix(".json")), str(self.image.with_suffix(".json")))

    def freeze_before_a_mount(self):
        """Freeze it when the driver is about to mount for the replay; return an event that says so."""
        frozen, real = threading.Event(), LocalHost()

        def run(*argv, **options):
            self.world.sh("fsfreeze", "--freeze", str(self.path))
            frozen.set()
            return real.run(*argv, **options)

        self.world.host.replaced[sys.executable] = run
        return frozen

    def close(self):
        self.world.sh("umount", str(self.path))


def waits_in_the_kernel(words):
    """Whether a program with these words in its arguments is in a system call that no signal ends."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            command = status.with_name("cmdline").read_bytes().decode(errors="replace").split("\0")
            if all(word in command for word in words) and status.read_text().rsplit(")", 1)[1].split()[0] == "D":
                return True
    return False


def test_a_replay_that_hangs_holds_no_other_volume(world):
    copy = copy_of_a_live_volume(world, "xfs")
    images = FilesystemOfImages(world, copy)
    world.volume("other")
    world.stage("other")
    frozen = images.freeze_before_a_mount()
    with ThreadPoolExecutor(1) as pool:
        staged = pool.submit(world.stage, copy, fs="xfs", mode=READER)
        try:
            assert frozen.wait(60)
            device = str(loopdev.find(images.image)[0])
            deadline = time.monotonic() + 60
            while not waits_in_the_kernel([device]):
                assert time.monotonic() < deadline
                assert not staged.done()
                time.sleep(0.05)
            world.unstage("other")
        finally:
            world.sh("fsfreeze", "--unfreeze", str(images.path))
        assert (staged.result() / "file19").read_bytes() == b"bytes" * 1000
    world.unstage(copy)
    images.close()
