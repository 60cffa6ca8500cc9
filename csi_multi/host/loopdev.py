"""Loop devices: find, attach, resize, detach. They are found in the kernel, and nothing is kept in memory."""

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
DETACH_TIMEOUT = 2.0  # seconds for programs that open a device only for a moment
NO_DIRECT_IO = "Invalid argument"  # from losetup, on a filesystem without direct I/O
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)  # no such file or device, or nothing bound
DELETED = " (deleted)"  # the kernel appends it to the path of a bound file that was removed


def bound_devices() -> dict[Path, str]:
    """Return the backing file of every loop device that has one, with the path that the kernel shows."""
    found = {}
    # It lists only devices with a size: far fewer than /sys/block, on a host with many loop nodes.
    for name in re.findall(r" (loop\d+)$", PARTITIONS.read_text(), re.MULTILINE):
        if backing := _text(f"{SYS}/{name}/loop/backing_file"):
            found[Path("/dev") / name] = backing
    return found


def find(file: Path) -> list[Path]:
    """Return the loop devices bound to this file, or to one that had this path when it was removed.

    Files are compared by inode, not by path: a device that was attached in a mount namespace which no longer exists
    (of a container that was replaced) shows a path relative to a mount that no longer exists.
    """
    gone = os.path.realpath(file) + DELETED
    return [device for device, backing in bound_devices().items() if backing == gone or is_bound_to(device, file)]


def is_bound_to(device: Path, file: Path) -> bool:
    """Whether the device's backing file is the file that has this path now (same inode).

    Raises Unavailable when this is unknown, because a volume in use must not seem free.
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
            raise _unavailable(device, error) from error
        return False
    return struct.unpack_from("=QQ", info) == (status.st_dev, status.st_ino)


def attach(host: Host, file: Path, *, read_only: bool = False, sector_size: int = 512) -> Path:
    """Bind a free loop device to the file, with direct I/O where the filesystem supports it.

    With direct I/O data is not cached twice. Some filesystems (tmpfs before Linux 6.6) do not support it.
    """
    arguments = [f"--sector-size={sector_size}", *(["--read-only"] if read_only else []), "--", str(file)]
    before = find(file)
    try:
        output = host.run("losetup", "--find", "--show", "--direct-io=on", *arguments).stdout
    except CommandFailed as error:
        if NO_DIRECT_IO not in error.stderr:
            raise
        for incomplete in set(find(file)) - set(before):
            detach(host, incomplete)
        log.warning("%s is on a filesystem without direct I/O, so its data is cached twice", file)
        output = host.run("losetup", "--find", "--show", "--direct-io=off", *arguments).stdout
    device = Path(output.strip())
    if not is_bound_to(device, file):
        actual = attribute(number_of(device), "loop/backing_file")
        raise Unavailable(f"{device} was bound to {file}, but its backing file is {actual}; try again")
    return device


def refresh(host: Host, device: Path) -> None:
    """Let a bound loop device take the new size of its file."""
    host.run("losetup", "--set-capacity", str(device))


def detach(host: Host, device: Path) -> None:
    """Free a loop device and wait until it is free: while it is open, the kernel waits for the last close.

    A program that only inspects it (blkid, losetup) closes it at once. Raises InUse when another keeps it open.
    """
    number = number_of(device)
    before = attribute(number, "loop/backing_file")
    host.run("losetup", "--detach", str(device))
    deadline = time.monotonic() + DETACH_TIMEOUT
    while before and attribute(number, "loop/backing_file") == before:
        if time.monotonic() > deadline:
            raise InUse(f"{device} is held open by a process on this node; the kernel frees it when the process ends")
        time.sleep(0.01)


def _text(file: str) -> str:
    """Read a small file with few system calls, because there may be hundreds of loop devices."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in ABSENT:
            raise _unavailable(file, error) from error
        return ""
    try:
        return os.fsdecode(os.read(descriptor, 2 * 4096)).removesuffix("\n")
    except OSError as error:
        if error.errno not in ABSENT:
            raise _unavailable(file, error) from error
        return ""
    finally:
        os.close(descriptor)


def _unavailable(path: Path | str, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot read the backing file of {path}: {error.strerror}; check the kernel log and the number of open files"
    )
