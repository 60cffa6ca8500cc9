"""Filesystems that are frozen for a copy are always thawed. Needs root."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from csi_multi_loop.freeze import FreezeCalls, Freezer, _opened

from csi_multi.contract import CommandFailed, InUse, Unavailable
from csi_multi.host import mounts

MIB = 2**20
pytestmark = pytest.mark.root


def writable(target, seconds=5.0):
    comparable_changes = threading.Event()

    def write():
        with contextlib.suppress(OSError):
            (target / "probe").write_text("x")
            os.sync()
            comparable_changes.set()

    threading.Thread(target=write, daemon=True).start()
    return comparable_changes.wait(seconds)


def test_a_freeze_is_lifted_when_the_copy_fails(staged, requests, crash, leftovers):
    backend, handle, target = staged()

    def fail():
        raise OSError(5, "made to fail")

    with crash.before("os.truncate", fail), pytest.raises(Unavailable, match="made to fail"):
        backend.create_snapshot(requests.snapshot("s", handle))

    assert writable(target)
    assert leftovers(backend) == []


def test_a_filesystem_frozen_by_another_program_stays_frozen(staged, requests, host, leftovers):
    backend, handle, target = staged()
    host.run("fsfreeze", "--freeze", str(target))
    with pytest.raises(Unavailable, match="could not be frozen") as refusal:
        backend.create_snapshot(requests.snapshot("s", handle))
    backend.resume()
    backend.check()

    assert f"fsfreeze --unfreeze {target}" in str(refusal.value)
    assert not writable(target, 0.5)
    host.run("fsfreeze", "--unfreeze", str(target))
    assert leftovers(backend) == []
    assert backend.create_snapshot(requests.snapshot("s", handle))


class Stuck(FreezeCalls):
    """A kernel that does not thaw, for a while."""

    broken = True

    def thaw(self, descriptor):
        if self.broken:
            raise OSError(errno.EIO, "made to fail")
        super().thaw(descriptor)


@pytest.mark.parametrize("by", ["check", "resume", "retry"])
def test_a_thaw_that_failed_is_tried_again(staged, connect, requests, leftovers, by):
    backend, handle, target = staged()
    faulty = Stuck()
    broken = connect(type(target)(backend.config.directory))
    broken._quiescer.freezer.calls = faulty
    with pytest.raises(Unavailable, match="may still be frozen"):
        broken.create_snapshot(requests.snapshot("s", handle))
    assert not writable(target, 0.5)
    faulty.broken = False
    retry = lambda: broken.create_snapshot(requests.snapshot("s", handle))  # noqa: E731
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
from csi_multi_loop.freeze import FreezeCalls

class Deadly(FreezeCalls):
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
backend._quiescer.freezer.calls = Deadly()
backend.create_snapshot(SnapshotRequest(stamp=stamp, source="node-1/source"))
"""


@pytest.mark.parametrize("when", ["before freeze", "after freeze", "in the copy", "after thaw"])
def test_a_process_killed_with_a_filesystem_frozen_is_repaired_by_the_next(staged, connect, requests, leftovers, when):
    backend, handle, target = staged()
    child = subprocess.run([sys.executable, "-c", CHILD, backend.config.directory, when], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert writable(target, 0.5) == (when in ("before freeze", "after thaw"))
    backend = connect(type(target)(backend.config.directory))
    backend.resume()

    assert writable(target)
    assert leftovers(backend) == []
    assert backend.create_snapshot(requests.snapshot("s", handle))


def test_a_filesystem_a_living_process_froze_is_not_thawed_by_another(staged, connect, requests, crash):
    backend, handle, target = staged()
    other = connect(type(target)(backend.config.directory))
    seen = []

    def meanwhile():
        other.resume()
        other.check()
        seen.append(writable(target, 0.5))

    with crash.before("os.truncate", meanwhile):
        backend.create_snapshot(requests.snapshot("s", handle))

    assert seen == [False]
    assert writable(target)


def test_a_covered_mount_is_not_mistaken_for_the_volumes(staged, requests, mount, leftovers):
    backend, handle, target = staged()
    mount("tmpfs", target, "-t", "tmpfs")
    with pytest.raises(Unavailable, match="covered by other mounts"):
        backend.create_snapshot(requests.snapshot("s", handle))

    assert leftovers(backend) == []


def test_a_filesystem_cannot_be_unmounted_while_it_is_held_frozen(staged, requests, host, leftovers):
    backend, handle, target = staged()
    refused = []

    class Unmounting(FreezeCalls):
        """Another program unmounts the volume right after the freeze."""

        def freeze(self, descriptor):
            super().freeze(descriptor)
            with pytest.raises(CommandFailed, match="busy"):
                host.run("umount", str(target))
            refused.append(target)

    backend._quiescer.freezer.calls = Unmounting()
    backend.create_snapshot(requests.snapshot("snap", handle))

    assert refused == [target]
    assert writable(target)


def test_a_frozen_filesystem_that_was_unmounted_after_a_kill_is_thawed_and_its_device_freed(
    staged, connect, requests, crash, host, leftovers
):
    backend, handle, target = staged()
    marker = backend._quiescer.freezer._markers / handle.partition("/")[2]
    marker.touch()
    host.run("fsfreeze", "--freeze", str(target))
    host.run("umount", str(target))
    with pytest.raises(InUse):
        backend.close_device(handle)

    backend.resume()

    backend.close_device(handle)
    assert backend.find_device(handle) is None
    assert not marker.exists()


def test_another_filesystem_at_the_path_is_not_frozen(staged, requests, host, leftovers):
    """The volume is unmounted between the look at the mount table and the freeze."""
    _backend, _handle, target = staged()
    mount_point = mounts.at(target)
    host.run("umount", str(target))
    frozen_descriptors = []

    class Watching(FreezeCalls):
        def freeze(self, descriptor):
            frozen_descriptors.append(descriptor)

    freezer = Freezer(host, target.parent, Watching())
    with (
        pytest.raises(Unavailable, match=r"covered by other mounts|unmounted just now"),
        freezer.frozen("v", [mount_point]),
    ):
        pass
    with pytest.raises(Unavailable, match="unmounted just now"), _opened(mount_point):
        pass

    assert frozen_descriptors == []


@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_a_filesystem_that_is_mounted_to_be_thawed_has_no_effect_on_the_node(staged, host, fs_type):
    _backend, _handle, target = staged(fs_type=fs_type, size=320 * MIB)
    device = Path(mounts.at(target).source)
    host.run("umount", str(target))
    if fs_type == "ext4":
        host.run("tune2fs", "-e", "panic", str(device))
    seen = []

    class Watching(FreezeCalls):
        def thaw(self, descriptor):
            seen.extend(one for one in mounts.table() if one.id == mounts.id_of(descriptor))
            super().thaw(descriptor)

    Freezer(host, target.parent, Watching())._thaw_unmounted(device)
    assert [one.fs_type for one in seen] == [fs_type]
    assert seen[0].options >= {"nosuid", "nodev", "noexec"}
    assert ("errors=remount-ro" in seen[0].super_options) == (fs_type == "ext4")
