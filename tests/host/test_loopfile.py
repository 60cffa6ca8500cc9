"""What is mounted from a device, as far as the mount table and sysfs show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from csi_multi.host import loopdev, loopfile, mounts, sysfs

NUMBERS = {"/dev/dm-3": "253:3", "/dev/mapper/vg0-data": "253:3", "/dev/nvme0n1p1": "259:1", "/dev/loop7": "7:7"}


@pytest.fixture(autouse=True)
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with these devices; its mount table is a file."""
    monkeypatch.setattr(loopdev, "_bound", list)
    monkeypatch.setattr(sysfs, "BLOCK", tmp_path / "block")
    monkeypatch.setattr(sysfs, "number_of", lambda path: NUMBERS[str(path)])
    monkeypatch.setattr(sysfs, "find_number", lambda path, **_: NUMBERS.get(str(path), ""))
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    for number in NUMBERS.values():
        (tmp_path / "block" / number / "holders").mkdir(parents=True, exist_ok=True)
    (tmp_path / "mountinfo").write_text(
        "30 1 0:44 / /btrfs rw - btrfs /dev/mapper/vg0-data rw\n"
        "31 1 259:1 / /ext4 rw - ext4 /dev/root rw\n"
        "32 1 8:1 / /gone rw - ext4 /dev/loop7 rw\n"
    )
    return tmp_path


def targets(device: str) -> list[str]:
    return [mount.target for mount in loopfile.mounted(Path(device))]


def test_btrfs_whose_source_is_a_link_to_the_device_is_found() -> None:
    assert targets("/dev/dm-3") == ["/btrfs"]


def test_a_partition_may_be_mounted_too() -> None:
    assert targets("/dev/nvme0n1p1") == ["/ext4"]


def test_what_is_mounted_from_a_device_above_is_found(kernel: Path) -> None:
    (kernel / "block" / "7:7" / "holders" / "dm-3").touch()

    assert targets("/dev/loop7") == ["/btrfs"]


def test_a_mount_of_an_earlier_device_of_this_name_is_not_one_of_this_device() -> None:
    assert targets("/dev/loop7") == []


def test_a_device_that_went_away_meanwhile_is_named(kernel: Path) -> None:
    (kernel / "block" / "7:7" / "holders").rmdir()

    with pytest.raises(sysfs.DeviceGone, match="/dev/loop7"):
        loopfile.mounted(Path("/dev/loop7"))
