"""What the kernel says of a directory is complete, or known not to be. No root needed, except for an unmount."""

import ctypes
import errno
import os
from pathlib import Path

import pytest
from csi_multi_loop import changes as changes_module
from csi_multi_loop.changes import Changes, Subscription

from csi_multi.host import mounts

QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def changes():
    made = Changes()
    yield made
    made.close()


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "watched").mkdir()
    return tmp_path / "watched"


def take(subscription, path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return subscription.take(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture
def looked(changes, directory):
    """A subscription that knows the directory as it is."""
    made = Subscription(changes)
    assert take(made, directory) is None
    assert take(made, directory) == {}
    return made


def test_names_that_appear_disappear_or_are_touched_are_reported_once(looked, directory):
    for name in "abc":
        (directory / name).mkdir()
    (directory / "b").rename(directory / "d")
    (directory / "c").rmdir()
    os.utime(directory / "a")

    assert take(looked, directory) == {"a": True, "b": False, "c": False, "d": False}
    assert take(looked, directory) == {}


def test_a_change_inside_a_subdirectory_is_reported_when_its_time_is_set(looked, directory):
    (directory / "a").mkdir()
    take(looked, directory)
    (directory / "a/label").write_text("new")
    (directory / "a/label").rename(directory / "a/other")

    assert take(looked, directory) == {}
    os.utime(directory / "a")
    assert take(looked, directory) == {"a": True}


def test_each_of_two_subscriptions_gets_all(changes, looked, directory):
    other = Subscription(changes)
    take(other, directory)
    (directory / "a").mkdir()

    assert take(looked, directory) == take(other, directory) == {"a": False}
    other.close()
    (directory / "b").mkdir()
    assert take(looked, directory) == {"b": False}


def test_another_directory_in_the_place_is_read_anew(looked, directory):
    directory.rename(directory.with_name("old"))
    directory.mkdir()

    assert take(looked, directory) is None
    (directory / "a").mkdir()
    (directory.with_name("old") / "b").mkdir()
    assert take(looked, directory) == {"a": False}


def test_a_directory_that_was_removed_and_made_again_is_read_anew(looked, directory):
    for _ in range(5):  # some filesystems give it the same inode
        directory.rmdir()
        directory.mkdir()
        assert take(looked, directory) is None
        assert take(looked, directory) == {}


@pytest.mark.root
def test_a_directory_whose_filesystem_was_mounted_again_is_read_anew(changes, filesystem, host):
    disk = filesystem("ext4")
    [device] = [mount.source for mount in mounts.table() if mount.target == str(disk)]
    subscription = Subscription(changes)
    take(subscription, disk)
    keeper = os.open(device, os.O_RDONLY)  # the loop device stays bound
    host.run("umount", str(disk))
    host.run("mount", device, str(disk))
    os.close(keeper)

    assert take(subscription, disk) is None
    assert take(subscription, disk) == {}


def test_after_more_changes_than_the_kernel_keeps_all_is_read_anew(looked, directory):
    (directory / "a").mkdir()
    for _ in range(int(QUEUE.read_text()) // 4 + 1):  # two events for each renaming
        (directory / "a").rename(directory / "b").rename(directory / "a")

    assert take(looked, directory) is None
    assert take(looked, directory) == {}
    (directory / "c").mkdir()
    assert take(looked, directory) == {"c": False}


def test_what_could_not_be_used_is_read_anew(looked, directory):
    (directory / "a").mkdir()
    take(looked, directory)
    looked.forget()

    assert take(looked, directory) is None


def test_without_a_queue_of_the_kernel_all_is_read_each_time_and_the_log_says_so_once(
    changes, directory, monkeypatch, caplog
):
    def refuse(_flags):
        ctypes.set_errno(errno.EMFILE)
        return -1

    subscription = Subscription(changes)
    with monkeypatch.context() as patch:
        patch.setattr(changes_module._libc, "inotify_init1", refuse)
        assert [take(subscription, directory) for _ in range(3)] == [None] * 3
    assert caplog.text.count("fs.inotify.max_user_instances") == 1
    assert take(subscription, directory) is None
    assert take(subscription, directory) == {}


def test_on_a_filesystem_that_others_may_write_to_all_is_read_each_time(changes, directory, monkeypatch):
    monkeypatch.setattr(changes_module, "filesystem_type", lambda _: 0x6969)  # NFS
    subscription = Subscription(changes)

    assert [take(subscription, directory) for _ in range(3)] == [None] * 3


def test_after_a_close_all_is_read_anew_and_the_queue_is_given_back(changes, looked, directory):
    before = len(os.listdir("/proc/self/fd"))
    changes.close()

    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert take(looked, directory) is None
    assert take(looked, directory) == {}


def test_a_queue_that_nobody_uses_any_more_is_given_back(directory):
    before = len(os.listdir("/proc/self/fd"))
    changes = Changes()
    take(Subscription(changes), directory)
    del changes

    assert len(os.listdir("/proc/self/fd")) == before
