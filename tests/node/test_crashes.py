"""The driver is killed at any point; a retry or the inverse call then succeeds, and nothing leaks."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time

import pytest

from csi_multi.contract import Blank, FailedPrecondition, Unavailable
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root

MiB = 1024 * 1024
SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB, None: 32 * MiB}
WAYS = [("ext4", False), ("xfs", False), ("btrfs", False), ("ext4", True), (None, False), (None, True)]
way = pytest.mark.parametrize(("fs", "read_only"), WAYS)


def deaths(world, call):
    """Run the call until it is killed, at every step in turn; end when it lives."""
    for steps in itertools.count():
        world.host.left = steps
        try:
            call(f"v{steps}")
        except world.Killed:
            world.host.left = None
            yield f"v{steps}"
        else:
            assert steps > 1
            world.host.left = None
            yield f"v{steps}"
            return


def prepared(world, fs, steps=30):
    for number in range(steps):
        world.volume(f"v{number}", SIZES[fs])


@way
def test_stage_is_repeated(world, fs, read_only):
    prepared(world, fs)
    for handle in deaths(world, lambda handle: world.stage(handle, fs=fs)):
        staging = world.stage(handle, fs=fs)

        assert len([path for path in world.mounted() if path.startswith(str(staging))]) == 1
        assert world.backend.blank(handle) is Blank.NEVER
        world.unstage(handle)
        assert (world.mounted(), world.loops()) == ([], [])


@way
def test_stage_is_taken_back(world, fs, read_only):
    prepared(world, fs)
    for handle in deaths(world, lambda handle: world.stage(handle, fs=fs)):
        world.unstage(handle)

        assert (world.mounted(), world.loops()) == ([], [])
        assert list(world.staging(handle).iterdir()) == []
        world.stage(handle, fs=fs)
        world.unstage(handle)


def publish(world, fs, read_only):
    def call(handle):
        left, world.host.left = world.host.left, None
        world.stage(handle, fs=fs)
        world.host.left = left
        world.publish(handle, world.target(handle), fs=fs, read_only=read_only)

    return call


@way
def test_publish_is_repeated(world, fs, read_only):
    prepared(world, fs)
    for handle in deaths(world, publish(world, fs, read_only)):
        target = world.publish(handle, world.target(handle), fs=fs, read_only=read_only)

        assert world.mounted().count(str(target)) == 1
        assert len(world.loops()) == (2 if read_only and not fs else 1)
        if fs:
            assert bool(os.statvfs(target).f_flag & os.ST_RDONLY) is read_only
        world.unpublish(handle, target)
        world.unstage(handle)


@way
def test_publish_is_taken_back(world, fs, read_only):
    prepared(world, fs)
    for handle in deaths(world, publish(world, fs, read_only)):
        world.unpublish(handle, world.target(handle))

        assert not world.target(handle).exists()
        assert len(world.loops()) == 1
        world.unstage(handle)


@way
def test_publish_is_forgotten_and_the_stage_taken_back(world, fs, read_only):
    """The layer of a read-only block publication must not outlive the stage."""
    prepared(world, fs)
    for handle in deaths(world, publish(world, fs, read_only)):
        if str(world.target(handle)) in world.mounted():
            world.unpublish(handle, world.target(handle))
        world.unstage(handle)

        assert (world.mounted(), world.loops()) == ([], [])


@way
def test_unpublish_and_unstage_are_repeated(world, fs, read_only):
    prepared(world, fs)

    def call(handle):
        left = world.host.left
        world.host.left = None
        publish(world, fs, read_only)(handle)
        world.host.left = left
        world.unpublish(handle, world.target(handle))
        world.unstage(handle)

    for handle in deaths(world, call):
        world.unpublish(handle, world.target(handle))
        world.unstage(handle)

        assert not world.target(handle).exists()
        assert list(world.staging(handle).iterdir()) == []
        assert (world.mounted(), world.loops()) == ([], [])


@pytest.mark.parametrize("fs", ["ext4", "xfs", "btrfs"])
def test_mkfs_killed_half_way_is_done_again(world, fs):
    """SIGKILL after every write in turn: strace injects it, so that each torn state is seen."""
    world.volume(size=SIZES[fs])
    writes = count_writes(world, fs)
    killed = []
    for nth in sorted({1, 2, 3, writes // 4, writes // 2, 3 * writes // 4, writes - 1, writes}):
        handle = world.volume(f"v{nth}", SIZES[fs])

        def mkfs(*argv, nth=nth, **_):
            killing = ["-e", f"trace={WRITES}", "-e", f"inject={WRITES}:signal=KILL:when={nth}"]
            process = subprocess.run(["strace", "-qq", "-f", *killing, *argv], capture_output=True)
            killed.append(process.returncode)
            raise world.Killed

        world.host.replaced[f"mkfs.{fs}"] = mkfs
        with pytest.raises(world.Killed):
            world.stage(handle, fs=fs)
        assert world.backend.blank(handle) is Blank.INTERRUPTED
        world.host.replaced.clear()
        staging = world.stage(handle, fs=fs)
        (staging / "file").write_text("bytes")
        world.unstage(handle)
        assert (world.stage(handle, fs=fs) / "file").read_text() == "bytes"
        world.unstage(handle)
    assert sum(1 for status in killed if status) >= 6  # a device may take a write or two less than a file


MAKE = {"ext4": ["mkfs.ext4", "-q", "-m", "0"], "xfs": ["mkfs.xfs", "-q", "-K"], "btrfs": ["mkfs.btrfs", "-q", "-K"]}
WRITES = "pwrite64"


def count_writes(world, fs):
    image = world.backend.image("v1")
    log = image.with_suffix(".strace")
    subprocess.run(
        ["strace", "-qq", "-f", "-o", str(log), "-e", f"trace={WRITES}", *MAKE[fs], str(image)],
        check=True,
        capture_output=True,
    )
    return len(log.read_text().splitlines())


def test_an_orphan_mkfs_is_waited_for(world):
    """kill -9 of the driver leaves mkfs running: the retry neither joins in nor fails for good."""
    world.volume()
    orphans = []

    def mkfs(*argv, **_):
        orphans.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 5
        while not held(argv[-1]) and orphans[0].poll() is None and time.monotonic() < deadline:
            pass
        orphans[0].send_signal(signal.SIGSTOP)
        raise world.Killed

    world.host.replaced["mkfs.ext4"] = mkfs
    with pytest.raises(world.Killed):
        world.stage()
    world.host.replaced.clear()
    if held(str(world.device().path)):
        with pytest.raises(Unavailable, match="in use on this node"):
            world.stage()
    orphans[0].send_signal(signal.SIGCONT)
    orphans[0].wait()

    (world.stage() / "file").write_text("bytes")
    world.unstage()


def test_an_orphan_fsck_is_waited_for(world):
    """Another driver's e2fsck, left by kill -9, opens the device between our look and ours."""
    world.volume()
    world.stage()
    world.unstage()

    def e2fsck(*argv, **options):
        orphan = os.open(argv[-1], os.O_RDWR | os.O_EXCL)
        try:
            return LocalHost().run(*argv, **options)
        finally:
            os.close(orphan)

    world.host.replaced["e2fsck"] = e2fsck
    with pytest.raises(Unavailable, match="e2fsck exited with status 8"):
        world.stage()
    world.host.replaced.clear()

    world.stage()
    world.unstage()


def held(device):
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
    except OSError:
        return True
    return False


def test_a_finished_mkfs_is_not_done_again(world):
    """The driver died after mkfs: what is there is complete, and stays."""
    world.volume()
    world.host.replaced["mkfs.ext4"] = lambda *argv, **_: (world.sh(*argv), (_ for _ in ()).throw(world.Killed))
    with pytest.raises(world.Killed):
        world.stage()
    world.host.replaced.clear()
    before = world.sh("blkid", "-p", "-s", "UUID", "-o", "value", str(world.device().path))
    world.stage()

    assert world.sh("blkid", "-p", "-s", "UUID", "-o", "value", str(world.device().path)) == before
    world.unstage()


def test_an_interrupted_format_does_not_excuse_a_foreign_signature(world):
    world.volume(size=128 * MiB, blank=Blank.INTERRUPTED)
    world.sh("sfdisk", "-q", str(world.backend.image("v1")), input="label: gpt\n,\n")
    before = world.digest()

    with pytest.raises(FailedPrecondition, match="partition table"):
        world.stage()
    assert world.digest() == before


def test_another_filesystem_may_be_asked_for_after_an_interrupted_format(world):
    world.volume(size=128 * MiB, blank=Blank.INTERRUPTED)
    world.sh("mkfs.ext4", "-q", str(world.backend.image("v1")))

    (world.stage(fs="btrfs") / "file").write_text("bytes")
    world.unstage()
