"""The door to the kernel for backends whose devices come and go: sysfs, nodes in /dev, users, the read-only flag.

Disks go by their name in /sys/block, which may pass to another disk at any time.
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
from . import mounts, sysfs

BLKROSET = 0x125D  # linux/fs.h
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)  # the disk or the attribute is not there


class BlockDevices:
    """Every method raises Unavailable when there is no clear answer: a disk that cannot be seen may be there."""

    def __init__(self, sys: Path = Path("/sys"), dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> None:
        self.sys = sys
        self.dev = dev
        self.proc = proc

    def disks(self) -> list[str]:
        with os_errors_as_unavailable(self.sys / "block"):
            return sorted(os.listdir(self.sys / "block"))

    def text(self, disk: str, attribute: str) -> str | None:
        """Return an attribute as the kernel pads it, None when there is none (any more)."""
        file = self.sys / "block" / disk / attribute
        try:
            return os.fsdecode(file.read_bytes()).removesuffix("\n")
        except OSError as error:
            if error.errno not in ABSENT:
                raise _unclear(file, error) from None
            return None

    def write_attribute(self, disk: str, attribute: str, text: str) -> None:
        """Write an attribute."""
        file = self.sys / "block" / disk / attribute
        with os_errors_as_unavailable(file):
            file.write_text(text)

    def size(self, disk: str) -> int:
        """Return its bytes, 0 when it is gone."""
        return int(self.text(disk, "size") or 0) * 512  # sysfs counts in 512-byte sectors

    def read_only(self, disk: str) -> bool:
        return self.text(disk, "ro") == "1"

    def node(self, disk: str) -> Path | None:
        """Return the disk's node in /dev, None while it has none, or the name there is another's."""
        path = self.dev / disk
        number = self.number(path)
        return path if number and number == self.text(disk, "dev") else None

    def number(self, path: Path) -> str:
        """Return "major:minor" of a device node, "" when it is none."""
        return sysfs.find_number(path)

    def in_use(self, path: Path) -> bool:
        """Whether the disk is mounted, in any mount namespace, below another device, or published raw."""
        try:
            with opened(path, os.O_EXCL):
                return self.published(path)
        except OSError as error:
            return error.errno == errno.EBUSY

    def published(self, path: Path) -> bool:
        """Whether a node of the disk is bound anywhere: the kernel does not count that as use."""
        number = self.number(path)
        return any(entry.binds_node and self.number(Path(entry.target)) == number for entry in mounts.table())

    def set_read_only(self, path: Path, wanted: bool) -> None:
        with os_errors_as_unavailable(path), opened(path) as descriptor:
            fcntl.ioctl(descriptor, BLKROSET, struct.pack("i", wanted))


@contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def os_errors_as_unavailable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unclear(file, error) from None


def _unclear(file: Path, error: OSError) -> Unavailable:
    return Unavailable(f"{file}: {error.strerror or error}; look at the kernel log, and try again")
