"""A filesystem that another program froze does not keep its volume on the node for ever."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from csi_multi.contract import InUse, Unavailable
from csi_multi.host import bounded, mounts
from csi_multi.node import fsgroup
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
    freeze(target)
    writer = subprocess.Popen(["dd", "if=/dev/zero", f"of={target}/file", "bs=4k", "count=1", "status=none"])
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


def publish_when_possible(world, **request):
    """Repeat as the kubelet does."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return world.publish(**request)
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@filesystems
def test_a_group_for_a_frozen_volume_is_refused_with_the_remedy_until_it_is_thawed(world, freeze, fs, monkeypatch):
    monkeypatch.setattr(fsgroup, "STALL_TIMEOUT", 0.5)
    world.volume(size=SIZES[fs])
    staging = world.stage(fs=fs, **SHARED)
    (staging / "file").write_text("bytes")
    freeze(staging)

    for _ in range(3):
        with pytest.raises(Unavailable, match=f"fsfreeze --unfreeze {staging}"):
            within(30, lambda: world.publish(fs=fs, group="4711", **SHARED))
    assert not world.target().exists()
    world.sh("fsfreeze", "--unfreeze", str(staging))
    publish_when_possible(world, fs=fs, group="4711", **SHARED)
    assert {(staging / "file").stat().st_gid, staging.stat().st_gid} == {4711}
    world.unpublish()
    world.unstage()


def test_a_walk_that_was_given_up_changes_nothing_more_when_the_filesystem_is_thawed(world, freeze, monkeypatch):
    monkeypatch.setattr(fsgroup, "STALL_TIMEOUT", 0.5)
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
