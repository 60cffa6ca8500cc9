"""A filesystem that another program froze does not keep its volume on the node for ever."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from csi_multi.contract import InUse, SizeRange, Unavailable
from csi_multi.host import bounded, mounts
from csi_multi.host.privilege import LinuxCapability, held
from csi_multi.node import stalled_writes
from tests.host.hanging import within

pytestmark = pytest.mark.root

MiB = 1024 * 1024
SIZES = {"ext4": 32 * MiB, "xfs": 320 * MiB, "btrfs": 128 * MiB}
filesystems = pytest.mark.parametrize("fs", SIZES)


@pytest.fixture
def freeze(world):
    """Freeze the filesystem at a path, as a backup program does that dies then."""

    paths = []

    def freeze(path):
        world.sh("fsfreeze", "--freeze", str(path))
        paths.append(path)

    yield freeze
    for path in paths:  # after a failed test, so that no process waits for ever
        subprocess.run(["fsfreeze", "--unfreeze", str(path)], check=False, stderr=subprocess.DEVNULL)


@filesystems
def test_a_volume_that_was_unpublished_while_frozen_is_unstaged_with_its_data(world, freeze, fs, caplog):
    world.volume(size=SIZES[fs])
    world.stage(fs=fs)
    target = world.publish(fs=fs)
    (target / "file").write_text("bytes")
    freeze(target)

    world.unpublish()
    world.unstage()
    assert "another program had frozen its filesystem" in caplog.text
    assert (world.mounted(), world.loops()) == ([], [])
    assert (world.stage(fs=fs) / "file").read_text() == "bytes"
    world.unstage()


@filesystems
def test_a_frozen_volume_that_is_mounted_nowhere_is_unstaged(world, freeze, fs):
    """As a driver that was killed after it had unmounted has left it."""
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    freeze(staging)
    world.sh("umount", str(staging))
    before = world.loops()

    world.unstage()
    assert (len(before), world.loops()) == (1, [])


def test_a_volume_frozen_while_read_only_is_unstaged(world, freeze):
    world.volume()
    world.stage()
    world.unstage()
    freeze(world.stage(mode="SINGLE_NODE_READER_ONLY"))
    world.unstage()

    assert world.loops() == []


def test_the_remedy_for_a_writer_that_waits_for_a_frozen_filesystem_is_named(world, freeze):
    world.volume()
    world.stage()
    target = world.publish()
    with (target / "file").open("wb") as file:  # opened before: a writer that has not opened it yet holds no mount
        freeze(target)
        writer = subprocess.Popen(["dd", "if=/dev/zero", "bs=4k", "count=1", "status=none"], stdout=file)
    wait_until_blocked(writer)
    with pytest.raises(InUse, match=f"fsfreeze --unfreeze {target}"):
        world.unpublish()
    world.sh("fsfreeze", "--unfreeze", str(target))
    assert writer.wait(timeout=60) == 0

    world.unpublish()
    world.unstage()


def wait_until_blocked(process):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "D":
            return
        time.sleep(0.01)
    raise AssertionError("the writer is not blocked")


def test_a_device_that_is_held_by_something_else_is_left_alone(world):
    world.volume()
    world.stage()
    path = world.device().path
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", "echo; read line"], stdin=-1, stdout=-1) as holder:
        holder.stdout.readline()  # it has a copy of all mounts by now
        with pytest.raises(InUse, match=f"{path} is in use on this node"):
            world.unstage()
        assert mounts.at(world.staging()) is None
        holder.communicate(b"\n")
    world.unstage()


SHARED = {"mode": "SINGLE_NODE_MULTI_WRITER"}


def repeat_while_unavailable(call):
    """Repeat as the kubelet does."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@filesystems
def test_a_group_for_a_frozen_volume_is_refused_with_the_remedy_until_it_is_thawed(world, freeze, fs, monkeypatch):
    monkeypatch.setattr(stalled_writes, "STALL_TIMEOUT", 0.5)
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs, **SHARED)
    (staging / "file").write_text("bytes")
    freeze(staging)

    for _ in range(3):
        with pytest.raises(Unavailable, match=f"fsfreeze --unfreeze {staging}"):
            within(30, lambda: world.publish(fs=fs, group="4711", **SHARED))
    assert not world.target().exists()
    world.sh("fsfreeze", "--unfreeze", str(staging))
    repeat_while_unavailable(lambda: world.publish(fs=fs, group="4711", **SHARED))
    assert {(staging / "file").stat().st_gid, staging.stat().st_gid} == {4711}
    world.unpublish()
    world.unstage()


@filesystems
@pytest.mark.parametrize("step", ["expand", "stage"])
def test_a_frozen_volume_does_not_grow_and_the_remedy_is_named_until_it_is_thawed(world, freeze, fs, step, monkeypatch):
    monkeypatch.setattr("csi_multi.node.grow.held", lambda _: True)
    monkeypatch.setattr(stalled_writes, "STALL_TIMEOUT", 0.5)
    size = 2 * max(SIZES[fs], 256 * MiB)
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs)
    os.truncate(world.backend.image("v1"), size)
    world.backend.refresh_device("v1")
    freeze(staging)
    world.host.calls.clear()

    grow = {
        "expand": lambda: world.expand("v1", staging, SizeRange(required=size)),
        "stage": lambda: world.stage(fs=fs),  # as kubelet does after its restart
    }[step]
    for _ in range(3):
        with pytest.raises(Unavailable, match=f"fsfreeze --unfreeze {staging}"):
            within(30, grow)
    assert not {"resize2fs", "xfs_growfs", "btrfs"} & {call[0] for call in world.host.calls}
    world.sh("fsfreeze", "--unfreeze", str(staging))
    if fs != "ext4" or held(LinuxCapability.CAP_SYS_RESOURCE):
        repeat_while_unavailable(grow)
        assert world.usage("v1", staging)[0].total > 1.5 * SIZES[fs]
    assert all(call.done(60) for call in bounded._unanswered.values())  # until then the mount is in use
    world.unstage()


def test_a_walk_that_was_given_up_changes_nothing_more_when_the_filesystem_is_thawed(world, freeze, monkeypatch):
    monkeypatch.setattr(stalled_writes, "STALL_TIMEOUT", 0.5)
    world.volume()
    staging = world.stage(**SHARED)
    for name in ("a", "b", "c"):
        (staging / name).write_text("bytes")
    freeze(staging)
    with pytest.raises(Unavailable):
        within(30, lambda: world.publish(group="4711", **SHARED))
    world.sh("fsfreeze", "--unfreeze", str(staging))

    assert all(call.done(60) for call in bounded._unanswered.values())
    changed = [path for path in (staging, *staging.iterdir()) if path.stat().st_gid]
    assert len(changed) <= 1  # the one that hung
    world.publish(group="4712", **SHARED)
    assert {path.stat().st_gid for path in (staging, *staging.iterdir())} == {4712}
    world.unpublish()
    world.unstage()
