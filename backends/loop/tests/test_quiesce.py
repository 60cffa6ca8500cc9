"""Copies of a volume that is attached and written to: whole, and flushed. Needs root."""

import contextlib
import os
import threading
import time

import pytest

from csi_multi.contract import FailedPrecondition

MIB = 2**20
pytestmark = pytest.mark.root


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
        thread.join(60)
        assert not thread.is_alive(), "the filesystem was left frozen"


def wait_for_writes(state, count):
    deadline = time.monotonic() + 60
    while state["synced"] < count:
        assert time.monotonic() < deadline, "nothing is written any more"
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["snapshot", "clone"])
@pytest.mark.parametrize(
    ("directory_on", "fs_type", "size"),
    [("ext4", "ext4", 64), ("xfs", "ext4", 64), ("btrfs", "ext4", 64), ("xfs", "xfs", 320), ("xfs", "btrfs", 128)],
)
def test_a_copy_of_a_busy_filesystem_is_clean_and_holds_what_was_synced(
    staged, requests, opened, host, mount, image, tmp_path, directory_on, fs_type, size, what
):
    backend, handle, target = staged(directory_on, fs_type, size * MIB)
    with writing(target) as state:
        wait_for_writes(state, 6)
        before = state["synced"]
        if what == "clone":
            copied = backend.clone_volume(requests.copy("c", "volume", handle)).handle
        else:
            snapshot = backend.create_snapshot(requests.snapshot("s", handle)).handle
            copied = backend.restore_volume(requests.copy("c", "snapshot", snapshot)).handle
        after = state["synced"]
        wait_for_writes(state, after + 1)  # writing goes on
    if fs_type == "ext4":
        check = host.run("e2fsck", "-f", "-n", str(image(backend, copied)), ok=(0, 1, 4))
        assert check.status == 0, check.stdout
    options = ["-o", "nouuid"] if fs_type == "xfs" else []
    if fs_type == "btrfs":
        host.run("umount", str(target))  # one btrfs of an id at a time
        backend.close_device(handle)
    shown = mount(opened(backend, copied), tmp_path / "copy", *options)

    numbers = {int(path.read_bytes()[:8] or b"0") for path in shown.iterdir() if path.name.isdigit()}
    assert max(numbers) >= before - 1
    host.run("umount", str(shown))


def test_page_cache_of_a_raw_volume_is_in_the_copy(connect, requests, filesystem, opened, image):
    backend = connect(filesystem("xfs") / "pool")
    handle = backend.create_volume(requests.volume("v")).handle
    with opened(backend, handle).open("r+b", buffering=0) as file:
        file.write(b"cached" * 4096)
        snapshot = backend.create_snapshot(requests.snapshot("s", handle)).handle

    assert image(backend, snapshot, "snapshots").read_bytes().startswith(b"cached" * 4096)


def test_a_raw_volume_that_cannot_be_copied_at_one_moment_is_refused(backend, requests, opened, leftovers):
    handle = backend.create_volume(requests.volume("v")).handle
    opened(backend, handle)
    for attempt in (
        lambda: backend.create_snapshot(requests.snapshot("s", handle)),
        lambda: backend.clone_volume(requests.copy("c", "volume", handle)),
    ):
        with pytest.raises(FailedPrecondition, match="unpublish and unstage it first"):
            attempt()

    assert leftovers(backend) == []
    backend.close_device(handle)
    assert backend.create_snapshot(requests.snapshot("s", handle))


@pytest.mark.parametrize("directory_on", ["ext4", "xfs"])
def test_a_freeze_for_a_whole_copy_is_said_in_the_log(staged, requests, caplog, directory_on):
    backend, handle, _ = staged(directory_on)
    backend.create_snapshot(requests.snapshot("s", handle))
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    if directory_on == "xfs":
        assert said == []
    else:
        assert "what writes to it waits" in said[0]
        assert "keep the directory on xfs or btrfs" in said[0]
        assert "was frozen for" in said[1]
