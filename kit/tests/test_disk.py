"""A disk whose power is cut keeps what was synced, and nothing else; one that is away comes back as it was."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import Disk
from csi_multi_testing.assertions import CheckFailed

from csi_multi.contract import CommandFailed, Host, Result
from csi_multi.host import loopdev, mounts
from csi_multi.host.command import LocalHost

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in memory: a busy disk of this machine would make every sync slow."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kit-disk-") as directory:
        yield Path(directory)


@pytest.fixture
def disk(directory: Path) -> Iterator[Disk]:
    with Disk(directory, size=64 * MIB) as disk:
        yield disk
    assert_nothing_left(directory)


def assert_nothing_left(directory: Path) -> None:
    assert [one.target for one in mounts.table() if one.target.startswith(str(directory))] == []
    deadline = time.monotonic() + 20  # another program may look at a device, which keeps it for a moment
    while bound := [file for file in loopdev.bound_devices().values() if file.startswith(str(directory))]:
        assert time.monotonic() < deadline, bound
        time.sleep(0.05)
    assert list(directory.iterdir()) == []


class Failing(LocalHost):
    """Fails at a program."""

    fails = ""

    def run(self, *argv: str, **more: Any) -> Result:
        if argv[0] == self.fails and "--detach" not in argv:
            raise CommandFailed(argv, Result(1, "", "planned"))
        return super().run(*argv, **more)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def names(disk: Disk) -> set[str]:
    return {one.name for one in disk.path.iterdir()} - {"lost+found"}


def test_what_was_synced_survives_a_power_cut(disk: Disk) -> None:
    (disk.path / "label.new").write_text("stamp")
    sync(disk.path / "label.new")
    (disk.path / "label.new").rename(disk.path / "label")
    sync(disk.path)

    disk.power_cut()

    assert names(disk) == {"label"}
    assert (disk.path / "label").read_text() == "stamp"


def test_what_was_renamed_without_a_sync_is_lost(disk: Disk) -> None:
    (disk.path / "label.new").write_text("stamp")
    sync(disk.path / "label.new")
    (disk.path / "label.new").rename(disk.path / "label")

    disk.power_cut()

    assert names(disk) == {"label.new"}


def test_what_was_never_synced_is_lost(disk: Disk) -> None:
    (disk.path / "label").write_text("stamp")

    disk.power_cut()

    assert names(disk) == set()


def test_a_removal_that_was_not_synced_is_undone(disk: Disk) -> None:
    (disk.path / "label").write_text("stamp")
    sync(disk.path / "label")
    sync(disk.path)
    (disk.path / "label").unlink()

    disk.power_cut()

    assert names(disk) == {"label"}


def test_a_power_cut_ends_the_devices_and_mounts_above(disk: Disk, tmp_path: Path) -> None:
    host: Host = LocalHost()
    image, target = disk.path / "image", tmp_path / "target"
    with image.open("wb") as file:
        file.truncate(16 * MIB)
    target.mkdir()
    device = host.run("losetup", "--find", "--show", str(image)).stdout.strip()
    host.run("mkfs.ext4", "-q", device)
    host.run("mount", device, str(target))
    sync(image)
    sync(disk.path)

    disk.power_cut()

    assert not [file for file in loopdev.bound_devices().values() if file == str(image)]
    assert mounts.at(target) is None
    assert names(disk) == {"image"}


def test_a_disk_that_is_away_leaves_an_empty_directory_and_comes_back_as_it_was(disk: Disk) -> None:
    (disk.path / "label").write_text("stamp")

    with disk.away():
        assert list(disk.path.iterdir()) == []

    assert names(disk) == {"label"}


def test_what_is_written_while_a_disk_is_away_is_reported_and_not_hidden(disk: Disk) -> None:
    (disk.path / "label").write_text("stamp")

    with pytest.raises(CheckFailed, match=r"volumes made in .* while nothing was mounted there"), disk.away():
        (disk.path / "volumes" / "v").mkdir(parents=True)

    assert names(disk) == {"label"}
    with disk.away():
        assert list(disk.path.iterdir()) == []


def test_a_disk_that_cannot_be_mounted_again_does_not_hide_the_error_of_the_check(directory: Path) -> None:
    host = Failing()
    with pytest.raises(CommandFailed, match="planned"), Disk(directory, size=64 * MIB, host=host) as disk, disk.away():
        host.fails = "mount"

    assert_nothing_left(directory)


def test_a_disk_that_cannot_be_mounted_leaves_nothing(directory: Path) -> None:
    host = Failing()
    host.fails = "mount"

    with pytest.raises(CommandFailed, match="planned"), Disk(directory, size=64 * MIB, host=host):
        pass

    assert_nothing_left(directory)


def test_a_power_cut_that_fails_leaves_nothing(directory: Path) -> None:
    host = Failing()
    with Disk(directory, size=64 * MIB, host=host) as disk:
        host.fails = "losetup"
        with pytest.raises(CommandFailed, match="planned"):
            disk.power_cut()

    assert_nothing_left(directory)


def test_a_power_cut_of_a_disk_that_is_always_written_fails(directory: Path) -> None:
    class Writing(LocalHost):
        def run(self, *argv: str, **more: Any) -> Result:
            done = super().run(*argv, **more)
            if argv[0] == "cp":
                os.utime(argv[2])
            return done

    with Disk(directory, size=64 * MIB, host=Writing()) as disk:
        with pytest.raises(CheckFailed, match="was written during each of 10 copies"):
            disk.power_cut()
        assert disk.path.is_mount()
    assert_nothing_left(directory)


def test_a_device_that_was_opened_before_the_disk_was_away_ends_with_it(disk: Disk) -> None:
    host: Host = LocalHost()
    image = disk.path / "image"
    with image.open("wb") as file:
        file.truncate(MIB)
    device = Path(host.run("losetup", "--find", "--show", str(image)).stdout.strip())
    with disk.away():
        pass

    disk.power_cut()

    assert not loopdev.bound_devices().get(device, "").endswith("image")


def test_a_disk_that_is_in_use_can_be_away(disk: Disk) -> None:
    with (disk.path / "label").open("w") as file, disk.away():
        assert list(disk.path.iterdir()) == []
        file.write("stamp")

    assert (disk.path / "label").read_text() == "stamp"


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_other_filesystems_lose_what_was_not_synced_too(directory: Path, kind: str) -> None:
    with Disk(directory, kind=kind) as disk:
        (disk.path / "kept").write_text("stamp")
        sync(disk.path / "kept")
        sync(disk.path)
        (disk.path / "lost").write_text("stamp")

        disk.power_cut()

        assert names(disk) == {"kept"}


def test_a_power_cut_ends_the_devices_of_files_in_a_subvolume(directory: Path) -> None:
    host: Host = LocalHost()
    with Disk(directory, kind="btrfs") as disk:
        host.run("btrfs", "subvolume", "create", str(disk.path / "subvolume"))
        image = disk.path / "subvolume" / "image"
        with image.open("wb") as file:
            file.truncate(16 * MIB)
        host.run("losetup", "--find", "--show", str(image))
        host.run("btrfs", "filesystem", "sync", str(disk.path))

        disk.power_cut()

        assert not [file for file in loopdev.bound_devices().values() if file.startswith(str(directory / "mounted/"))]
    assert_nothing_left(directory)
