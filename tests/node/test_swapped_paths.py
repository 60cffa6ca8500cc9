"""A process that replaces directories by links while the driver works gets no mount, and loses none."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading

import pytest

from csi_multi.contract import FailedPrecondition, StorageError
from csi_multi.host import mount_calls, mounts
from csi_multi.node import stalled_writes

pytestmark = pytest.mark.root

ROUNDS = 40 if "MATRIX" not in os.environ else 400  # one in fifteen hits a driver that mounts by path


def rounds(count, share=1):
    """So many rounds, and on a busy machine more, until the path was swapped during a tenth of them."""
    for number in itertools.count():
        if number >= ROUNDS // share and count[0] > ROUNDS / 10:
            return
        assert number < 100 * ROUNDS, f"swapped {count[0]} times only"
        yield number


@contextlib.contextmanager
def swapping(path, victim):
    """Replace a path by a link to the victim, and back, as fast as possible; give the number of times so far."""
    done, count = threading.Event(), [0]

    def swap():
        aside = path.with_name(f"{path.name}-aside")
        while not done.is_set():
            with contextlib.suppress(OSError):
                path.rename(aside)
                path.symlink_to(victim)
                count[0] += 1
                path.unlink()
                aside.rename(path)
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    path.unlink()
            with contextlib.suppress(OSError):
                aside.rmdir()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield count
    finally:
        done.set()
        thread.join()


@pytest.fixture(params=["open_tree", "mount"])
def calls(request, monkeypatch):
    """The kernel's calls for mounts since Linux 5.12, and the older one."""
    if request.param == "mount":

        def refuse(*_):
            raise OSError(errno.ENOSYS, "")

        monkeypatch.setattr(mount_calls, "_clone", refuse)
        monkeypatch.setattr(mount_calls, "mount_detached", refuse)


@pytest.fixture
def victim(world):
    directory = world.directory / "victim"
    directory.mkdir()
    (directory / "file").write_text("precious")
    return directory


def elsewhere(world, allowed):
    return [path for path in world.mounted() if path not in {str(one) for one in allowed}]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_target_that_is_swapped_for_a_link_is_never_followed(world, victim, calls, read_only):
    world.volume()
    staging = world.stage()
    parent = world.directory / "pod"
    parent.mkdir()
    target, published = parent / "target", 0
    with swapping(target, victim) as count:
        for _ in rounds(count):
            with contextlib.suppress(StorageError):
                world.publish(target=target, read_only=read_only)
                published += 1
            assert elsewhere(world, {staging, target}) == []
            with contextlib.suppress(StorageError):
                world.unpublish(target=target)
            assert elsewhere(world, {staging, target}) == []
    print(f"{published} published, {count[0]} times swapped")
    if target.is_symlink():
        target.unlink()
    world.unpublish(target=target)
    world.unstage()
    assert (victim / "file").read_text() == "precious"


def test_a_parent_that_is_swapped_for_a_link_is_never_followed(world, victim, calls):
    world.volume()
    staging = world.stage()
    parent = world.directory / "pod"
    parent.mkdir()
    target = parent / "target"
    with swapping(parent, victim) as count:
        for _ in rounds(count):
            with contextlib.suppress(StorageError):
                world.publish(target=target)
            here = [path for path in world.mounted() if path != str(staging)]
            assert not [path for path in here if path.startswith(str(victim))]
            for path in here:
                with contextlib.suppress(StorageError):
                    world.unpublish(target=world.directory / path)
    for path in world.mounted():
        if path != str(staging):
            world.sh("umount", path)
    world.unstage()
    assert os.listdir(victim) == ["file"]


@pytest.mark.parametrize("fs", ["ext4", None], ids=["mount", "block"])
def test_a_staging_path_that_is_swapped_for_a_link_is_never_followed(world, victim, calls, fs):
    world.volume()
    world.stage(fs=fs)
    world.unstage()
    staging = world.staging()
    with swapping(staging, victim) as count:
        for _ in rounds(count, 4):
            with contextlib.suppress(StorageError):
                world.stage(staging=staging, fs=fs)
            # The directory may be renamed with what is mounted in it, but nothing may be mounted on the victim.
            assert not [path for path in world.mounted() if path.startswith(str(victim))]
            with contextlib.suppress(StorageError, OSError):
                world.unstage(staging=staging)
    for path in reversed(world.mounted()):
        world.sh("umount", path)
    if staging.is_symlink():
        staging.unlink()
    staging.mkdir(exist_ok=True)
    world.unstage()
    assert os.listdir(victim) == ["file"]


def test_a_link_below_the_directory_of_the_orchestrator_is_refused(world, victim):
    world.volume()
    world.stage()
    (world.directory / "pods").symlink_to(victim)

    with pytest.raises(FailedPrecondition, match=r"a part of .*/pods/target is a symbolic link"):
        world.publish(target=world.directory / "pods/target")
    assert os.listdir(victim) == ["file"]
    world.unstage()


def test_a_bind_has_the_flags_asked_for_with_either_call(world, calls):
    world.volume()
    staging = world.stage(flags=("nosuid", "noatime"))
    target = world.publish(flags=("nosuid", "noatime", "nodev", "noexec", "nodiratime", "nosymfollow"), read_only=True)

    shown = {"ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "nosymfollow"}
    assert mounts.at(target).options == shown
    assert mounts.at(staging).options == {"rw", "nosuid", "nodev", "noatime"}
    world.unpublish()
    world.publish(flags=("strictatime",))
    assert mounts.at(target).options == {"rw", "nosuid", "nodev"}
    world.unpublish()
    world.unstage()


def test_a_link_to_another_target_of_the_volume_does_not_unpublish_that_one(world):
    shared = {"mode": "SINGLE_NODE_MULTI_WRITER"}
    real, kubelet = world.directory / "data/kubelet", world.directory / "kubelet"
    pods = [real / f"pods/{name}" for name in ("one", "two")]
    for directory in (real / "staging", *pods):
        directory.mkdir(parents=True)
    kubelet.symlink_to(real)  # as operators do
    staging, targets = kubelet / "staging", [kubelet / f"pods/{pod.name}/mount" for pod in pods]
    world.volume()
    world.stage(staging=staging, **shared)
    for target in targets:
        world.publish(target=target, staging=staging, **shared)
    moved = pods[0].rename(real / "moved")
    pods[0].symlink_to(pods[1])
    before = world.mounted()

    with pytest.raises(FailedPrecondition, match="leads through a symbolic link"):
        world.unpublish(target=targets[0])
    assert world.mounted() == before
    pods[0].unlink()
    moved.rename(pods[0])
    for target in targets:
        world.unpublish(target=target)
    world.unstage(staging=staging)


def test_a_group_is_not_given_to_a_directory_that_a_link_leads_to_meanwhile(world, monkeypatch):
    parent, aside, victim = (world.directory / name for name in ("plugin", "aside", "victim"))
    for directory in (parent / "staging", victim / "staging"):
        directory.mkdir(parents=True)
    file = victim / "staging/file"
    file.touch(mode=0o600)
    world.volume()
    world.stage(staging=parent / "staging", mode="SINGLE_NODE_MULTI_WRITER")
    ask = stalled_writes.bounded.ask

    def swap_first(*question):
        parent.rename(aside)
        parent.symlink_to(victim)
        try:
            return ask(*question)
        finally:
            parent.unlink()
            aside.rename(parent)

    with monkeypatch.context() as patch:
        patch.setattr(stalled_writes.bounded, "ask", swap_first)
        with pytest.raises(FailedPrecondition, match="is a symbolic link or no directory"):
            world.publish(staging=parent / "staging", mode="SINGLE_NODE_MULTI_WRITER", group="4711")
    assert (file.stat().st_gid, file.stat().st_mode & 0o777) == (0, 0o600)
    world.publish(staging=parent / "staging", mode="SINGLE_NODE_MULTI_WRITER", group="4711")
    world.unpublish()
    world.unstage(staging=parent / "staging")
