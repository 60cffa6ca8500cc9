"""Filesystems that are frozen for a copy are always thawed. Needs root."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading

import pytest

from csi_multi.contract import CommandFailed, Unavailable
from csi_multi.node import freeze, freeze_notes, frozen_leftovers, thaw

MIB = 2**20
pytestmark = pytest.mark.root


def writable(target):
    written = threading.Event()

    def write():
        with contextlib.suppress(OSError):
            (target / "probe").write_text("x")
            os.sync()
            written.set()

    threading.Thread(target=write, daemon=True).start()
    return written.wait(60)


def is_frozen(target):
    """Ask the kernel, which freezes nothing twice."""
    descriptor = os.open(target, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, freeze.FIFREEZE, 0)
        fcntl.ioctl(descriptor, thaw.FITHAW, 0)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise
    finally:
        os.close(descriptor)
    return False


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
    frozen_leftovers.thaw_all(host)

    assert f"fsfreeze --unfreeze {target}" in str(refusal.value)
    assert is_frozen(target)
    host.run("fsfreeze", "--unfreeze", str(target))
    assert leftovers(backend) == []
    assert backend.create_snapshot(requests.snapshot("s", handle))


@pytest.fixture
def kernel(monkeypatch):
    """Kernel calls around which a test does something: kernel(before=..., after=...) with the request."""
    real = thaw.call_kernel

    def set_up(before=lambda _: None, after=lambda _: None):
        def call(descriptor, request):
            before(request)
            real(descriptor, request)
            after(request)

        monkeypatch.setattr(thaw, "call_kernel", call)

    return set_up


@pytest.mark.parametrize("by", ["check", "retry"])
def test_a_thaw_that_failed_is_tried_again(staged, host, requests, leftovers, by, kernel):
    backend, handle, target = staged()
    broken = [True]

    def stuck(request):
        if request == thaw.FITHAW and broken:
            raise OSError(errno.EIO, "made to fail")

    kernel(before=stuck)
    with pytest.raises(Unavailable, match="may still be frozen"):
        backend.create_snapshot(requests.snapshot("s", handle))
    assert is_frozen(target)
    broken.clear()
    if by == "check":
        frozen_leftovers.thaw_all(host)
    else:
        backend.create_snapshot(requests.snapshot("s", handle))

    assert writable(target)
    assert leftovers(backend) == []


CHILD = """
import os, pathlib, signal, sys
from csi_multi.contract.backend import Setting
from csi_multi.host.command import LocalHost
from csi_multi.contract.model import SnapshotRequest, Stamp
from csi_multi.node import freeze, freeze_notes, thaw
from csi_multi_loop.backend import LoopBackend
from csi_multi_loop.config import Config

freeze_notes.NOTES = pathlib.Path(sys.argv[3])
real = thaw.call_kernel

def call(descriptor, request):
    what = "thaw" if request == thaw.FITHAW else "freeze"
    if sys.argv[2] == f"before {what}":
        os.kill(os.getpid(), signal.SIGKILL)
    real(descriptor, request)
    if sys.argv[2] == f"after {what}":
        os.kill(os.getpid(), signal.SIGKILL)

def hook(event, args):
    if sys.argv[2] == "in the copy" and event == "os.truncate":
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
thaw.call_kernel = call
config = Config(directory=sys.argv[1], reserve_percent=0, min_size=4096)
names = {"instance": "scratch", "driver": "multi.csi.test", "cluster": "c", "node": "node-1"}
setting = Setting(**names, host=LocalHost(), frozen=freeze.frozen)
stamp = Stamp(driver="multi.csi.test", cluster="c", name="s", digest="d", context={"k": "v"})
LoopBackend(config, setting).create_snapshot(SnapshotRequest(stamp=stamp, source="node-1/source"))
"""


@pytest.mark.parametrize("when", ["before freeze", "after freeze", "in the copy", "after thaw"])
def test_a_process_killed_with_a_filesystem_frozen_is_repaired_by_the_next(
    staged, connect, host, requests, leftovers, when
):
    backend, handle, target = staged()
    command = [sys.executable, "-c", CHILD, backend.config.directory, when, str(freeze_notes.NOTES)]
    child = subprocess.run(command, check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert is_frozen(target) == (when in ("after freeze", "in the copy"))
    frozen_leftovers.thaw_all(host)
    backend = connect(type(target)(backend.config.directory))
    backend.resume()

    assert writable(target)
    assert leftovers(backend) == []
    assert backend.create_snapshot(requests.snapshot("s", handle))


def test_a_filesystem_a_living_process_froze_is_not_thawed_by_another(staged, host, requests, crash):
    backend, handle, target = staged()
    seen = []

    def meanwhile():
        frozen_leftovers.thaw_all(host)
        seen.append(is_frozen(target))

    with crash.before("os.truncate", meanwhile):
        backend.create_snapshot(requests.snapshot("s", handle))

    assert seen == [True]
    assert writable(target)


def test_a_covered_mount_is_not_mistaken_for_the_volumes(staged, requests, mount, leftovers):
    backend, handle, target = staged()
    mount("tmpfs", target, "-t", "tmpfs")
    with pytest.raises(Unavailable, match="covered by other mounts"):
        backend.create_snapshot(requests.snapshot("s", handle))

    assert leftovers(backend) == []


def test_a_filesystem_cannot_be_unmounted_while_it_is_held_frozen(staged, requests, host, kernel):
    backend, handle, target = staged()
    refused = []

    def unmount(request):
        """Another program unmounts the volume right after the freeze."""
        if request == freeze.FIFREEZE:
            with pytest.raises(CommandFailed, match="busy"):
                host.run("umount", str(target))
            refused.append(target)

    kernel(after=unmount)
    backend.create_snapshot(requests.snapshot("snap", handle))

    assert refused == [target]
    assert writable(target)
