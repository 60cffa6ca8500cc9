"""Block devices that appear and disappear: their sysfs attributes, nodes in /dev, users and read-only flag.

A disk is identified by its name in /sys/block, which another disk may get at any time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..contract.errors import Unavailable
from . import exclusive, mounts, sysfs

BLKROSET = 0x125D  # linux/fs.h
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)  # the disk or the attribute does not exist


class BlockDevices:
    """The block devices of this machine.

    Every method raises Unavailable when the kernel gives no clear answer, because the disk may exist all the same.
    """

    def __init__(self, sys: Path = Path("/sys"), dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> None:
        self.sys = sys
        self.dev = dev
        self.proc = proc

    def disks(self) -> list[str]:
        with os_errors_as_unavailable(self.sys / "block"):
            return sorted(os.listdir(self.sys / "block"))

    def text(self, disk: str, attribute: str) -> str | None:
        """Return an attribute with the kernel's padding; None when the disk or the attribute does not exist."""
        file = self.sys / "block" / disk / attribute
        try:
            return os.fsdecode(file.read_bytes()).removesuffix("\n")
        except OSError as error:
            if error.errno not in ABSENT:
                raise _unavailable(file, error) from None
            return None

    def write_attribute(self, disk: str, attribute: str, text: str) -> None:
        file = self.sys / "block" / disk / attribute
        with os_errors_as_unavailable(file):
            file.write_text(text)

    def size(self, disk: str) -> int:
        """Return the size in bytes, 0 when the disk does not exist."""
        return int(self.text(disk, "size") or 0) * 512  # sysfs counts in 512-byte sectors

    def read_only(self, disk: str) -> bool:
        return self.text(disk, "ro") == "1"

    def node(self, disk: str) -> Path | None:
        """Return the disk's node in /dev; None while it has none, or when that name belongs to another disk."""
        path = self.dev / disk
        number = self.number(path)
        return path if number and number == self.text(disk, "dev") else None

    def number(self, path: Path) -> str:
        """Return "major:minor" of a device node, "" when the path is none."""
        return sysfs.find_number(path)

    def in_use(self, path: Path) -> bool:
        """Whether the disk is mounted in any mount namespace, below another device, or published as raw block."""
        return exclusive.is_held(path) or self.is_node_bound(path)

    def is_node_bound(self, path: Path) -> bool:
        """Whether a node of the disk is bound anywhere, which the kernel does not count as use."""
        return mounts.is_node_bound(self.number(path))

    def set_read_only(self, path: Path, read_only: bool) -> None:
        with os_errors_as_unavailable(path), open_descriptor(path) as descriptor:
            fcntl.ioctl(descriptor, BLKROSET, struct.pack("i", read_only))


@contextmanager
def open_descriptor(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def os_errors_as_unavailable(file: Path) -> Iterator[None]:
    """Raise Unavailable in place of OSError."""
    try:
        yield
    except OSError as error:
        raise _unavailable(file, error) from None


def _unavailable(file: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{file}: {error.strerror or error}; see the kernel log, then try again")
