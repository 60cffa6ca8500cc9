"""Loop devices: find, attach, resize, detach. Found by what the kernel says, never by memory."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import struct
import time
from pathlib import Path

from ..contract.errors import InUse, Unavailable
from ..contract.machine import CommandFailed, Host
from .sysfs import attribute, number_of

log = logging.getLogger(__name__)

SYS = Path("/sys/block")
PARTITIONS = Path("/proc/partitions")
GET_STATUS = 0x4C05  # LOOP_GET_STATUS64: struct loop_info64 starts with the file's device and inode
INFO_BYTES = 232
DETACH_TIMEOUT = 2.0  # seconds for those who have a device open only to look at it
NO_DIRECT_IO = "Invalid argument"  # what losetup says where the filesystem lacks it
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)  # no such file or device, or nothing bound
DELETED = " (deleted)"  # how the kernel marks the path of a file that was removed while bound


def bound() -> dict[Path, str]:
    """Return the path of the backing file of every loop device that has one, as the kernel shows it."""
    found = {}
    # Only devices with a size stand in there: far fewer than /sys/block has, on a host with many loop nodes.
    for name in re.findall(r" (loop\d+)$", PARTITIONS.read_text(), re.MULTILINE):
        if backing := _text(f"{SYS}/{name}/loop/backing_file"):
            found[Path("/dev") / name] = backing
    return found


def find(file: Path) -> list[Path]:
    """Return the loop devices bound to this file, or to one that had this path when it was removed.

    The inode decides, not the path: a device that was attached in a mount namespace which is gone (a
    container that was replaced) shows its path relative to a mount that nobody has any more.
    """
    gone = os.path.realpath(file) + DELETED
    return [device for device, backing in bound().items() if backing == gone or backs(device, file)]


def backs(device: Path, file: Path) -> bool:
    """Whether the device's backing file is the very file that has this path now (same inode).

    Raises Unavailable when that cannot be told: a volume in use must not seem free.
    """
    try:
        status = file.stat()
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            info = fcntl.ioctl(descriptor, GET_STATUS, bytes(INFO_BYTES))
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in ABSENT:
            raise _unclear(device, error) from error
        return False
    return struct.unpack_from("=QQ", info) == (status.st_dev, status.st_ino)


def attach(host: Host, file: Path, *, read_only: bool = False, sector_size: int = 512) -> Path:
    """Bind a free loop device to the file, with direct I/O where the filesystem has it.

    With direct I/O data is not cached twice; some filesystems (tmpfs before Linux 6.6) lack it.
    """
    options = [f"--sector-size={sector_size}", *(["--read-only"] if read_only else [])]
    before = find(file)
    try:
        device = _bind(host, file, "--direct-io=on", *options)
    except CommandFailed as error:
        if NO_DIRECT_IO not in error.stderr:
            raise
        for half_made in set(find(file)) - set(before):
            detach(host, half_made)
        log.warning("%s is on a filesystem without direct I/O: its data is cached twice", file)
        device = _bind(host, file, "--direct-io=off", *options)
    if not backs(device, file):
        raise Unavailable(f"{device} was bound to {file} but shows {attribute(number_of(device), 'loop/backing_file')}")
    return device


def _bind(host: Host, file: Path, *options: str) -> Path:
    return Path(host.run("losetup", "--find", "--show", *options, "--", str(file)).stdout.strip())


def refresh(host: Host, device: Path) -> None:
    """Let a bound loop device take its file's new size."""
    host.run("losetup", "--set-capacity", str(device))


def detach(host: Host, device: Path) -> None:
    """Free a loop device, and see it go: while anybody has it open the kernel waits for the last close.

    A program that only looks (blkid, losetup) closes it at once. Raises InUse for any other.
    """
    number = number_of(device)
    before = attribute(number, "loop/backing_file")
    host.run("losetup", "--detach", str(device))
    ends = time.monotonic() + DETACH_TIMEOUT
    while before and attribute(number, "loop/backing_file") == before:
        if time.monotonic() > ends:
            raise InUse(f"{device} is held open by a process on this node; the kernel frees it when that ends")
        time.sleep(0.01)


def _text(file: str) -> str:
    """Read a small file, as cheaply as can be: there may be hundreds of loop devices."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in ABSENT:
            raise _unclear(file, error) from error
        return ""
    try:
        return os.fsdecode(os.read(descriptor, 2 * 4096)).removesuffix("\n")
    except OSError as error:
        if error.errno not in ABSENT:
            raise _unclear(file, error) from error
        return ""
    finally:
        os.close(descriptor)


def _unclear(what: Path | str, error: OSError) -> Unavailable:
    return Unavailable(f"cannot tell what {what} is bound to: {error.strerror}; check the kernel log and open files")
