"""Loop devices: find, attach, resize, detach. Found by what the kernel says, never by memory."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from ..errors import Unavailable
from . import Host
from .sysfs import attribute, number_of

SYS = Path("/sys/block")
GET_STATUS = 0x4C05  # LOOP_GET_STATUS64: struct loop_info64 starts with the file's device and inode
INFO_BYTES = 232
DELETED = " (deleted)"  # how the kernel marks the path of a file that was removed while bound


def find(file: Path) -> list[Path]:
    """Return the loop devices bound to this file, or to one of this path that has been deleted.

    Device and inode decide, not the path in sysfs: a device attached from a mount namespace that is
    gone (a container that was replaced) shows the path relative to a mount nobody has any more.
    """
    gone = os.path.realpath(file) + DELETED
    found = []
    for name in sorted(os.listdir(SYS)):
        if name.startswith("loop"):
            device = Path("/dev") / name
            backing = _text(SYS / name / "loop/backing_file")
            if backing == gone or (backing and backs(device, file)):
                found.append(device)
    return found


def backs(device: Path, file: Path) -> bool:
    """Whether the loop device is bound to this very file: same filesystem, same inode."""
    try:
        status = file.stat()
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        info = fcntl.ioctl(descriptor, GET_STATUS, bytes(INFO_BYTES))
    except OSError:
        return False  # not bound
    finally:
        os.close(descriptor)
    return struct.unpack_from("=QQ", info) == (status.st_dev, status.st_ino)


def attach(host: Host, file: Path, *, read_only: bool = False, sector_size: int = 512) -> Path:
    """Bind a free loop device to the file with direct I/O, so that data is not cached twice."""
    options = ["--direct-io=on", f"--sector-size={sector_size}", *(["--read-only"] if read_only else [])]
    device = Path(host.run("losetup", "--find", "--show", *options, "--", str(file)).stdout.strip())
    if not backs(device, file):
        raise Unavailable(f"{device} was bound to {file} but shows {attribute(number_of(device), 'loop/backing_file')}")
    return device


def refresh(host: Host, device: Path) -> None:
    """Let a bound loop device take its file's new size."""
    host.run("losetup", "--set-capacity", str(device))


def detach(host: Host, device: Path) -> None:
    """Free a loop device. While somebody holds it open the kernel frees it at the last close."""
    host.run("losetup", "--detach", str(device))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape").rstrip("\n")
    except OSError:
        return ""  # not bound
