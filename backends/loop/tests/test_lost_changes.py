"""Who misses what the kernel says of changes still counts and lists what others have made. No root needed."""

import ctypes
import errno
import os
from pathlib import Path

import pytest
from csi_multi_loop import changes

from csi_multi.contract import CapacityRequest, PageRequest, ResourceExhausted

MIB = 2**20
QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


def available(backend):
    return backend.capacity(CapacityRequest()).available


def about(mebibytes):
    return pytest.approx(mebibytes * MIB, abs=MIB)  # entries take some blocks


def listed(backend):
    return [volume.stamp.name for volume in backend.list_volumes(PageRequest()).items]


@pytest.fixture
def fill_queue():
    """Change the directory more often than the kernel keeps."""

    def fill(backend):
        name = Path(backend.config.directory, "volumes/.new-x")
        name.mkdir()
        for _ in range(int(QUEUE.read_text()) // 4 + 1):  # two events for each renaming
            name.rename(name.with_name(".new-y")).rename(name)
        name.rmdir()

    return fill


@pytest.fixture
def refuse(monkeypatch):
    """Let a call of the kernel fail."""

    def refuse(name, code):
        def fail(*_):
            ctypes.set_errno(code)
            return -1

        monkeypatch.setattr(changes._libc, name, fail)

    return refuse


def others_work_counts(backend, other, requests):
    """Let another process change everything, and compare what both say."""
    other.expand_volume(requests.expand("node-1/v", 60 * MIB))
    other.delete_volume("node-1/w", {})
    other.create_volume(requests.volume("x", 20 * MIB))

    assert listed(backend) == listed(other) == ["v", "x"]
    assert available(backend) == available(other) == about(20)
    with pytest.raises(ResourceExhausted):
        backend.create_volume(requests.volume("y", 30 * MIB))
    backend.create_volume(requests.volume("y", 19 * MIB))
    assert listed(other) == ["v", "x", "y"]
    assert available(other) == available(backend) <= MIB


@pytest.fixture
def used(backend, requests, disk):
    """A backend that knows its directory."""
    for name in ("v", "w"):
        backend.create_volume(requests.volume(name, 10 * MIB))
    assert (listed(backend), available(backend)) == (["v", "w"], about(80))
    return backend


def test_after_a_full_queue(used, connect, requests, fill_queue):
    fill_queue(used)

    others_work_counts(used, connect(), requests)


def test_with_a_queue_that_fills_up_after_the_changes(used, connect, requests, fill_queue):
    other = connect()
    other.expand_volume(requests.expand("node-1/v", 60 * MIB))
    other.delete_volume("node-1/w", {})
    fill_queue(used)

    assert listed(used) == ["v"]
    assert available(used) == available(other) == about(40)


@pytest.mark.parametrize(
    ("call", "code"),
    [("inotify_init1", errno.EMFILE), ("inotify_init1", errno.ENOSYS), ("inotify_add_watch", errno.ENOSPC)],
)
def test_where_only_one_of_two_processes_has_a_queue(used, connect, requests, refuse, call, code):
    refuse(call, code)  # `used` has its own
    others_work_counts(used, connect(), requests)
    others_view = connect()
    others_view.delete_volume("node-1/y", {})
    used.delete_volume("node-1/x", {})

    assert listed(others_view) == listed(used) == ["v"]
    assert available(others_view) == available(used) == about(40)


def test_with_a_queue_that_cannot_be_opened_again(used, connect, requests, refuse):
    used.close()
    refuse("inotify_init1", errno.EMFILE)

    others_work_counts(used, connect(), requests)


def test_after_the_directories_were_moved_away_and_back(used, connect, requests):
    other, volumes = connect(), Path(used.config.directory, "volumes")
    volumes.rename(volumes.with_name("elsewhere"))
    volumes.mkdir()
    assert (listed(used), available(used)) == ([], about(100))
    volumes.rmdir()
    volumes.with_name("elsewhere").rename(volumes)

    others_work_counts(used, other, requests)


def test_where_the_directory_of_the_volumes_is_replaced_by_a_copy(used, connect, requests):
    volumes = Path(used.config.directory, "volumes")
    copy = volumes.with_name("copy")
    for label in volumes.glob("*/volume.json"):
        entry = copy / label.parent.name
        entry.mkdir(parents=True)
        (entry / label.name).write_bytes(label.read_bytes())
        (entry / "image").touch()
        os.truncate(entry / "image", 10 * MIB)
    volumes.rename(volumes.with_name("before"))
    copy.rename(volumes)

    others_work_counts(used, connect(), requests)
