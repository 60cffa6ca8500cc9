"""Properties of block devices, read from sysfs and the device node without starting a process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..contract.errors import FailedPrecondition, Unavailable
from ..contract.model import Device
from . import small_files

BLOCK = Path("/sys/dev/block")


class DeviceGone(Unavailable):
    """A block device does not exist any more. This does not mean that the volume is gone."""


def number_of(path: Path) -> str:
    """Return "major:minor" of a block device node. Raises DeviceGone."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DeviceGone(f"device {path} does not exist") from None
    if not stat.S_ISBLK(status.st_mode):
        raise DeviceGone(f"{path} is not a block device")
    return format_number(status.st_rdev)


def find_number(path: Path | str, *, follow: bool = True) -> str:
    """Return "major:minor" of a block device node, "" when the path is none. `follow`: also through a symbolic link."""
    try:
        status = Path(path).stat(follow_symlinks=follow)
    except (OSError, ValueError):
        return ""
    return format_number(status.st_rdev) if stat.S_ISBLK(status.st_mode) else ""


def node_of(number: str) -> Path:
    """Return the device node that the kernel makes for a block device."""
    return Path("/dev") / (BLOCK / number).resolve().name


def format_number(device: int) -> str:
    """Return a device number (st_rdev, st_dev) as the kernel writes it: "major:minor"."""
    return f"{os.major(device)}:{os.minor(device)}"


def attribute(number: str, name: str) -> str | None:
    """Return a sysfs attribute of a block device, None when it does not have it."""
    try:
        return os.fsdecode(small_files.read(f"{BLOCK}/{number}/{name}")).removesuffix("\n")
    except OSError:
        return None


def exists(number: str) -> bool:
    """Whether a block device has this number now."""
    return attribute(number, "dev") == number


def disk_sequence(number: str) -> str:
    """Return the kernel's diskseq, which no two disks have between two boots; "" before Linux 5.15."""
    return attribute(number, "diskseq") or ""


def size_of(number: str) -> int:
    """Return a block device's size in bytes. Raises DeviceGone."""
    sectors = attribute(number, "size")
    if sectors is None:
        raise DeviceGone(f"block device {number} does not exist any more")
    return int(sectors) * 512  # sysfs counts in 512-byte sectors, whatever the device's own size


def sector_size(number: str) -> int:
    """Return the bytes of a logical sector of a block device, a disk or a partition; 0: not known."""
    for name in ("queue/logical_block_size", "../queue/logical_block_size"):  # a disk, a partition
        if size := attribute(number, name):
            return int(size)
    return 0


def read_only(number: str) -> bool:
    return attribute(number, "ro") == "1"


def verify(device: Device) -> None:
    """Raise FailedPrecondition unless the device is, right now, the one its proof describes."""
    found = number_of(device.path)
    if found != device.number:
        raise FailedPrecondition(
            f"{device.path} is device {found}, not {device.number} as expected, so it is not touched; "
            "unstage the volume and stage it again"
        )
    for name, expected in device.proof.items():
        actual = attribute(device.number, name)
        if actual != expected:
            raise FailedPrecondition(
                f"{device.path} is not the expected device: {name} is {actual!r}, expected {expected!r}; "
                "unstage the volume and stage it again"
            )
