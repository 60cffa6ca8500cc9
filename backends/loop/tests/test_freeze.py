"""Copies of a volume that is mounted and written to: whole, flushed, and never left frozen. Needs root."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from csi_multi_loop.freeze import Freezer, Gate, _opened

from csi_multi.contract import CommandFailed, FailedPrecondition, InUse, Unavailable
from csi_multi.host import mounts

MIB = 2**20
pytestmark = pytest.mark.root


@pytest.fixture
def staged(make, ask, filesystem, opened, host, mount, tmp_path):
    """A mounted volume, kept in a directory on a filesystem of this kind."""

    def staged(directory_on="ext4", fs_type="ext4", size=64 * MIB):
        backend = make(filesystem(directory_on, 1024 * MIB) / "pool")
        handle = backend.create_volume(ask.volume("source", size)).handle
        device = opened(backend, handle)
        host.run(f"mkfs.{fs_type}", "-q", str(device))
        return backend, handle, mount(device, tmp_path / "mnt")

    return staged


@contextlib.contextmanager
def writing(target):
    """Write numbered files, synced one by one, all the while; yields how many are surely on disk."""
    state = {"synced": 0, "stop": False}

    def write():
        while not state["stop"]:
            number = state["synced"]
            with (target / f"{number % 400:03}").open("wb") as file:
                file.write(f"{number:08}".encode() * 512)
                file.flush()
                os.fsync(file.fileno())
            state["synced"] = number + 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield state
    finally:
        state["stop"] = True
        thread.join(20)
        assert not thread.is_alive(), "the filesystem was left frozen"


def writable(target, seconds=5.0):
    done = threading.Event()

    def write():
        with contextlib.suppress(OSError):
            (target / "probe").write_text("x")
            os.sync()
            done.set()

    threading.Thread(target=write, daemon=True).start()
    return done.wait(seconds)


@pytest.mark.parametrize("what", ["snapshot", "clone"])
@pytest.mark.parametrize(
    ("directory_on", "fs_type", "size"),
    [("ext4", "ext4", 64), ("xfs", "ext4", 64), ("btrfs", "ext4", 64), ("xfs", "xfs", 320), ("xfs", "btrfs", 128)],
)
def test_a_copy_of_a_busy_filesystem_is_clean_and_holds_what_was_synced(
    staged, ask, opened, host, mount, image, tmp_path, directory_on, fs_type, size, what
):
    backend, handle, target = staged(directory_on, fs_type, size * MIB)
    with writing(target) as state:
        time.sleep(0.3)
        before = state["synced"]
        if what == "clone":
            copied = backend.clone_volume(ask.copy("c", "volume", handle)).handle
        else:
            cut = backend.create_snapshot(ask.snapshot("s", handle)).handle
            copied = backend.restore_volume(ask.copy("c", "snapshot", cut)).handle
        after = state["synced"]
        time.sleep(0.1)
        assert state["synced"] > after, "writing goes on"
    if fs_type == "ext4":
        check = host.run("e2fsck", "-f", "-n", str(image(backend, copied)), ok=(0, 1, 4))
        assert check.status == 0, check.stdout
    options = ["-o", "nouuid"] if fs_type == "xfs" else []
    if fs_type == "btrfs":
        host.run("umount", str(target))  # one btrfs of an id at a time
        backend.close_device(handle)
    shown = mount(opened(backend, copied), tmp_path / "copy", *options)

    assert before > 5
    numbers = {int(path.read_bytes()[:8] or b"0") for path in shown.iterdir() if path.name.isdigit()}
    assert max(numbers) >= before - 1
    host.run("umount", str(shown))


def test_page_cache_of_a_raw_volume_is_in_the_copy(make, ask, filesystem, opened, image):
    backend = make(filesystem("xfs") / "pool")
    handle = backend.create_volume(ask.volume("v")).handle
    with opened(backend, handle).open("r+b", buffering=0) as file:
        file.write(b"cached" * 4096)
        cut = backend.create_snapshot(ask.snapshot("s", handle)).handle

    assert image(backend, cut, "snapshots").read_bytes().startswith(b"cached" * 4096)


def test_a_raw_volume_that_cannot_be_copied_at_one_moment_is_refused(backend, ask, opened, leftovers):
    handle = backend.create_volume(ask.volume("v")).handle
    opened(backend, handle)
    for attempt in (
        lambda: backend.create_snapshot(ask.snapshot("s", handle)),
        lambda: backend.clone_volume(ask.copy("c", "volume", handle)),
    ):
        with pytest.raises(FailedPrecondition, match="unpublish and unstage it first"):
            attempt()

    assert leftovers(backend) == []
    backend.close_device(handle)
    assert backend.create_snapshot(ask.snapshot("s", handle))


def test_a_freeze_is_lifted_when_the_copy_fails(staged, ask, crash, leftovers):
    backend, handle, target = staged()

    def fail():
        raise OSError(5, "made to fail")

    with crash.before("os.truncate", fail), pytest.raises(Unavailable, match="made to fail"):
        backend.create_snapshot(ask.snapshot("s", handle))

    assert writable(target)
    assert leftovers(backend) == []


def test_a_filesystem_frozen_by_somebody_else_is_left_to_them(staged, ask, host, leftovers):
    backend, handle, target = staged()
    host.run("fsfreeze", "--freeze", str(target))
    with pytest.raises(Unavailable, match="could not be frozen"):
        backend.create_snapshot(ask.snapshot("s", handle))
    backend.resume()
    backend.check()

    assert not writable(target, 0.5)
    host.run("fsfreeze", "--unfreeze", str(target))
    assert leftovers(backend) == []
    assert backend.create_snapshot(ask.snapshot("s", handle))


class Stuck(Gate):
    """A kernel that does not thaw, for a while."""

    broken = True

    def thaw(self, descriptor):
        if self.broken:
            raise OSError(errno.EIO, "made to fail")
        super().thaw(descriptor)


@pytest.mark.parametrize("by", ["check", "resume", "retry"])
def test_a_thaw_that_failed_is_tried_again(staged, make, ask, leftovers, by):
    backend, handle, target = staged()
    faulty = Stuck()
    broken = make(type(target)(backend.config.directory))
    broken._stillness._freezer.gate = faulty
    with pytest.raises(Unavailable, match="may still be frozen"):
        broken.create_snapshot(ask.snapshot("s", handle))
    assert not writable(target, 0.5)
    faulty.broken = False
    retry = lambda: broken.create_snapshot(ask.snapshot("s", handle))  # noqa: E731
    {"check": broken.check, "resume": broken.resume, "retry": retry}[by]()

    assert writable(target)
    assert leftovers(backend) == []


CHILD = """
import os, signal, sys
from csi_multi.contract.backend import Setting
from csi_multi.host.command import LocalHost
from csi_multi.contract.model import SnapshotRequest, Stamp
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config
from csi_multi_loop.freeze import Gate

class Deadly(Gate):
    def freeze(self, descriptor):
        if sys.argv[2] == "before freeze":
            os.kill(os.getpid(), signal.SIGKILL)
        super().freeze(descriptor)
        if sys.argv[2] == "after freeze":
            os.kill(os.getpid(), signal.SIGKILL)

    def thaw(self, descriptor):
        super().thaw(descriptor)
        if sys.argv[2] == "after thaw":
            os.kill(os.getpid(), signal.SIGKILL)

def hook(event, args):
    if sys.argv[2] == "in the copy" and event == "os.truncate":
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
config = Config(directory=sys.argv[1], reserve_percent=0, min_size=4096)
setting = Setting(instance="scratch", driver="multi.csi.test", cluster="c", node="node-1", host=LocalHost())
stamp = Stamp(driver="multi.csi.test", cluster="c", name="s", digest="d", context={"k": "v"})
backend = LoopBackend(config, setting)
backend._stillness._freezer.gate = Deadly()
backend.create_snapshot(SnapshotRequest(stamp=stamp, source="node-1/source"))
"""


@pytest.mark.parametrize("when", ["before freeze", "after freeze", "in the copy", "after thaw"])
def test_a_process_killed_with_a_filesystem_frozen_is_repaired_by_the_next(staged, make, ask, leftovers, when):
    backend, handle, target = staged()
    child = subprocess.run([sys.executable, "-c", CHILD, backend.config.directory, when], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert writable(target, 0.5) == (when in ("before freeze", "after thaw"))
    backend = make(type(target)(backend.config.directory))
    backend.resume()

    assert writable(target)
    assert leftovers(backend) == []
    assert backend.create_snapshot(ask.snapshot("s", handle))


def test_a_filesystem_a_living_process_froze_is_not_thawed_by_another(staged, make, ask, crash):
    backend, handle, target = staged()
    other = make(type(target)(backend.config.directory))
    seen = []

    def meanwhile():
        other.resume()
        other.check()
        seen.append(writable(target, 0.5))

    with crash.before("os.truncate", meanwhile):
        backend.create_snapshot(ask.snapshot("s", handle))

    assert seen == [False]
    assert writable(target)


def test_a_covered_mount_is_not_mistaken_for_the_volumes(staged, ask, mount, leftovers):
    backend, handle, target = staged()
    mount("tmpfs", target, "-t", "tmpfs")
    with pytest.raises(Unavailable, match="covered by other mounts"):
        backend.create_snapshot(ask.snapshot("s", handle))

    assert leftovers(backend) == []


def test_a_filesystem_cannot_be_unmounted_while_it_is_held_frozen(staged, ask, host, leftovers):
    backend, handle, target = staged()
    refused = []

    class Unmounting(Gate):
        """Somebody unmounts the volume right after the freeze."""

        def freeze(self, descriptor):
            super().freeze(descriptor)
            with pytest.raises(CommandFailed, match="busy"):
                host.run("umount", str(target))
            refused.append(target)

    backend._stillness._freezer.gate = Unmounting()
    backend.create_snapshot(ask.snapshot("snap", handle))

    assert refused == [target]
    assert writable(target)


def test_a_frozen_filesystem_that_was_unmounted_after_a_kill_is_thawed_and_its_device_freed(
    staged, make, ask, crash, host, leftovers
):
    backend, handle, target = staged()
    marker = backend._stillness._freezer._markers / handle.partition("/")[2]
    marker.touch()
    host.run("fsfreeze", "--freeze", str(target))
    host.run("umount", str(target))
    with pytest.raises(InUse):
        backend.close_device(handle)

    backend.resume()

    backend.close_device(handle)
    assert backend.find_device(handle) is None
    assert not marker.exists()


def test_another_filesystem_at_the_path_is_not_frozen(staged, ask, host, leftovers):
    """The volume is unmounted between the look at the mount table and the freeze."""
    _backend, _handle, target = staged()
    place = mounts.at(target)
    host.run("umount", str(target))
    froze = []

    class Watching(Gate):
        def freeze(self, descriptor):
            froze.append(descriptor)

    freezer = Freezer(host, target.parent, Watching())
    with pytest.raises(Unavailable, match=r"covered by other mounts|unmounted just now"), freezer.frozen("v", [place]):
        pass
    with pytest.raises(Unavailable, match="unmounted just now"), _opened(place):
        pass

    assert froze == []
