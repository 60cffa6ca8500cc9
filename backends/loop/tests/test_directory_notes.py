"""Drivers that do not see each other's directories do not promise the same space twice. Needs root, and unshare."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from csi_multi_loop import directory as directory_module
from csi_multi_loop import directory_notes, shared_filesystem

from csi_multi.contract import CapacityRequest, DryRunReport, ResourceExhausted, Unavailable, errors

MIB = 2**20
PROGRAM = Path(__file__).with_name("driver_process.py")
# In a mount namespace of its own it has only its own directory, as in a container.
HIDE = 'mkdir -p "$2" && mount --bind "$1" "$2" && umount --lazy "$3" && shift 3 && exec "$@"'
pytestmark = pytest.mark.root


class Driver:
    """A driver's process and its calls."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, *call):
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()

    def answer(self):
        error, value = json.loads(self.process.stdout.readline())
        if error:
            raise getattr(errors, error)(value)
        return value

    def call(self, *call):
        self.start(*call)
        return self.answer()

    def stop(self):
        self.process.stdin.close()
        self.process.wait()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def driver(undo, tmp_path):
    """Start a driver for a directory on a filesystem, which is all that it sees of it."""

    def driver(disk, name, *, sees_all=False, prefix=()):
        own = disk / name / "data"
        own.mkdir(parents=True, exist_ok=True)
        view = own if sees_all else tmp_path / f"view-{name}"
        program = [sys.executable, PROGRAM, directory_notes.NOTES, view / "pool", f"{name}.csi.test"]
        hide = ["unshare", "--mount", "--propagation=private", "sh", "-c", HIDE, "sh", own, view, disk]
        started = Driver([str(word) for word in (*([] if sees_all else hide), *prefix, *program)])
        undo.callback(started.kill)
        started.call("resume")
        return started

    return driver


@pytest.fixture(params=["ext4", "xfs", "btrfs", "tmpfs"])
def disk(request, filesystem):
    return filesystem(request.param, 400 * MIB)


@pytest.fixture
def small(filesystem):
    return filesystem("ext4", 128 * MIB)


@pytest.mark.parametrize("sees_all", [False, True], ids=["hidden", "elsewhere"])
def test_what_one_driver_has_promised_another_does_not_promise_again(disk, driver, sees_all):
    first, second = (driver(disk, name, sees_all=sees_all) for name in ("one", "two"))
    free = second.call("capacity")
    size = free * 6 // 10 // 4096 * 4096
    first.call("create", "v", size)

    assert abs(first.call("capacity") - second.call("capacity")) <= MIB
    assert second.call("capacity") <= free - size
    with pytest.raises(ResourceExhausted, match="also those of other instances"):
        second.call("create", "w", size)
    second.call("create", "w", 16 * MIB)
    with pytest.raises(ResourceExhausted):
        second.call("expand", "w", size)
    with pytest.raises(ResourceExhausted):
        first.call("expand", "v", free - 8 * MIB)
    first.call("delete", "v")
    assert second.call("capacity") >= free - 18 * MIB
    second.call("expand", "w", size)


def test_directories_that_are_subvolumes_count_together(filesystem, driver, host):
    disk = filesystem("btrfs", 400 * MIB)
    for name in ("one", "two"):
        (disk / name).mkdir()
        host.run("btrfs", "subvolume", "create", str(disk / name / "data"))
        host.run("btrfs", "subvolume", "create", str(disk / name / "data/pool"))
    first, second = driver(disk, "one"), driver(disk, "two")
    free = second.call("capacity")
    first.call("create", "v", 200 * MIB)

    assert second.call("capacity") <= free - 200 * MIB
    with pytest.raises(ResourceExhausted):
        second.call("create", "w", 200 * MIB)


def test_a_volume_that_is_written_does_not_count_twice(small, driver):
    first, second = driver(small, "one"), driver(small, "two")
    first.call("create", "v", 40 * MIB)
    before = second.call("capacity")
    (small / "one/data/pool/volumes/v/image").write_bytes(os.urandom(40 * MIB))
    os.sync()

    assert abs(second.call("capacity") - before) <= MIB


@pytest.mark.parametrize("end", [Driver.kill, Driver.stop])
def test_what_a_driver_has_promised_stays_when_it_ends_and_when_it_starts_again(small, driver, end):
    first, second = driver(small, "one"), driver(small, "two")
    first.call("create", "v", 60 * MIB)
    for one in (first, second):
        end(one)
    second = driver(small, "two")
    with pytest.raises(ResourceExhausted):
        second.call("create", "w", 60 * MIB)
    driver(small, "one")
    with pytest.raises(ResourceExhausted):
        second.call("create", "w", 60 * MIB)


def test_after_a_boot_a_driver_that_has_not_started_yet_counts(small, driver):
    first, second = driver(small, "one"), driver(small, "two")
    second.call("create", "w", 60 * MIB)
    first.call("check")
    first.kill()
    second.kill()
    shutil.rmtree(directory_notes.NOTES)
    first = driver(small, "one")

    with pytest.raises(ResourceExhausted):
        first.call("create", "v", 60 * MIB)


@pytest.mark.parametrize("gone", ["directory", "owner"])
def test_a_driver_whose_directory_is_removed_or_given_up_does_not_count(small, driver, gone):
    first, second = driver(small, "one"), driver(small, "two")
    free = second.call("capacity")
    first.call("create", "v", 60 * MIB)
    second.call("check")
    first.kill()
    if gone == "directory":
        shutil.rmtree(small / "one")
    else:
        (small / "one/data/pool/owner.json").unlink()

    assert second.call("capacity") >= free - MIB
    assert len(list(directory_notes.NOTES.glob("*/*"))) == 1
    second.call("create", "w", 60 * MIB)


def test_simultaneous_creations_of_two_drivers_never_promise_more_than_there_is(small, driver):
    drivers = [driver(small, name) for name in ("one", "two", "three")]
    free = drivers[0].call("capacity")
    for turn in range(12):
        sizes = []
        for one in drivers:
            one.start("create", f"v{turn}", 20 * MIB)
        for one in drivers:
            try:
                sizes.append(one.answer())
            except ResourceExhausted:
                sizes.append(0)
        promised = sum(path.stat().st_size for path in small.glob("*/data/pool/volumes/*/image"))
        assert promised <= free
    assert promised > free - 20 * MIB - 4 * MIB  # neither was refused what it could have had


def test_a_driver_that_meets_another_for_the_first_time_counts_what_it_is_creating(
    small, connect, crash, driver, requests
):
    """The second is first used while the first has counted the space, and has not taken it yet."""
    first = connect(small / "here/pool")
    second = driver(small, "two")
    shutil.rmtree(directory_notes.NOTES)

    def meanwhile():
        second.start("create", "w", 60 * MIB)
        time.sleep(0.5)

    first.check()
    with crash.before("os.rename", meanwhile):
        first.create_volume(requests.volume("v", 60 * MIB))
    with pytest.raises(ResourceExhausted):
        second.answer()


def test_a_driver_that_hangs_with_its_directory_locked_stops_others_for_a_limited_time(
    small, connect, driver, requests, undo, monkeypatch
):
    driver(small, "two").call("create", "w", MIB)
    first = connect(small / "here/pool")
    first.check()
    locked = small / "two/data/pool"
    holder = subprocess.Popen(
        ["flock", "--no-fork", locked, "sh", "-c", "echo held; exec sleep 600"], stdout=subprocess.PIPE, text=True
    )
    undo.callback(holder.communicate)
    undo.callback(holder.kill)
    assert holder.stdout.readline() == "held\n"
    monkeypatch.setattr(directory_module, "LOCK_SECONDS", 0.5)
    with pytest.raises(Unavailable, match="view-two/pool has been locked by another operation"):
        first.create_volume(requests.volume("v", MIB))
    assert first.capacity(CapacityRequest()).available > MIB

    holder.kill()
    holder.wait()
    first.create_volume(requests.volume("v", MIB))


def test_a_note_about_another_filesystem_that_had_the_same_number_does_not_count(small, filesystem, connect, requests):
    """A handle may lead to a directory by chance; then its owner file has another token."""
    first = connect(small / "here/pool")
    first.check()
    other = connect(small / "else/where/pool")
    other.create_volume(requests.volume("v", 60 * MIB))
    before = first.capacity(CapacityRequest()).available
    folder = next(directory_notes.NOTES.iterdir())
    for note in folder.iterdir():
        note.write_text(note.read_text().replace(other._directory._token, "0" * 16))
    shared_filesystem._filesystems.clear()

    assert first.capacity(CapacityRequest()).available >= before + 59 * MIB
    assert len(list(folder.iterdir())) == 1


def test_a_driver_that_cannot_leave_its_note_creates_nothing(small, connect, requests):
    directory_notes.NOTES.write_text("")
    backend = connect(small / "here/pool")
    for attempt in (backend.check, lambda: backend.create_volume(requests.volume("v", MIB))):
        with pytest.raises(Unavailable, match="directory-notes"):
            attempt()
    directory_notes.NOTES.unlink()

    backend.create_volume(requests.volume("v", MIB))


def test_a_damaged_note_is_named(small, connect, requests):
    backend = connect(small / "here/pool")
    backend.check()
    damaged = next(directory_notes.NOTES.iterdir()) / "other"
    damaged.write_text("{")

    with pytest.raises(Unavailable, match=f"{damaged} is not of this driver, or damaged"):
        backend.create_volume(requests.volume("v", MIB))


def test_a_driver_that_may_not_open_the_others_directory_creates_nothing(small, driver):
    driver(small, "one").call("create", "v", 60 * MIB)
    restricted = driver(small, "two", prefix=("setpriv", "--bounding-set=-dac_read_search"))

    with pytest.raises(Unavailable, match=r"view-one/pool.* give the driver CAP_DAC_READ_SEARCH"):
        restricted.call("create", "w", 60 * MIB)


def test_on_a_filesystem_without_file_handles_an_instance_works_alone(mount, connect, requests, filesystem, tmp_path):
    below = filesystem("tmpfs", 64 * MIB)
    for name in ("lower", "upper", "work"):
        (below / name).mkdir()
    options = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
    backend = connect(mount("overlay", tmp_path / "merged", "-t", "overlay", "-o", options) / "pool")
    backend.check()
    backend.create_volume(requests.volume("v", MIB))

    assert list(directory_notes.NOTES.glob("*/*")) == []


def test_a_dry_run_leaves_no_note(small, connect, requests):
    connect(small / "here/pool").check()
    shutil.rmtree(directory_notes.NOTES)
    backend = connect(small / "here/pool").dry_run(DryRunReport())
    backend.create_volume(requests.volume("v", MIB))

    assert not directory_notes.NOTES.exists()
