"""Loop devices: find, attach, resize, detach. They are found in the kernel, and nothing is kept in memory."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import struct
import time
from pathlib import Path

from ..contract.errors import InUse, Unavailable
from ..contract.machine import CommandFailed, Host
from . import loop_calls, small_files
from .bounded import ask
from .mounts import is_node_bound
from .sysfs import attribute, find_number, node_of, number_of

_LIBC = ctypes.CDLL(None, use_errno=True)
SYS = Path("/sys/block")
BLOCK = Path("/sys/class/block")
PARTITIONS = Path("/proc/partitions")
GET_STATUS = 0x4C05  # LOOP_GET_STATUS64: struct loop_info64 starts with the file's device and inode
INFO_BYTES = 232
ASK_TIMEOUT = 3.0  # seconds: the kernel asks the filesystem of the backing file, which may hang
DETACH_TIMEOUT = 2.0  # seconds for programs that open a device only for a moment
NO_DIRECT_IO = "Invalid argument"  # from losetup, on a filesystem without direct I/O
MAJOR = "7:"  # how the numbers of loop devices begin (linux/major.h)
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)  # no such file or device, or nothing bound
UNSHOWN = (*ABSENT, errno.ENAMETOOLONG)  # a path that is too long to be shown is none of ours
# Known to keep what is written by direct I/O, and to know holes (linux/magic.h): ext4, xfs, btrfs, tmpfs.
KNOWN_FILESYSTEMS = (0xEF53, 0x58465342, 0x9123683E, 0x01021994)
STATFS_BYTES = 256  # at least struct statfs, which starts with f_type, an unsigned long
DELETED = " (deleted)"  # the kernel appends it to the path of a bound file that was removed


def bound_devices() -> dict[Path, str]:
    """Return the backing file of every loop device that has one, with the path that the kernel shows."""
    return {Path(node): backing for node, backing in _bound()}


def _bound() -> list[tuple[str, str]]:
    """Return node and backing file of every loop device that has one."""
    # It lists only devices with a size: far fewer than /sys/block, on a host with many loop nodes.
    names = re.findall(r" (loop\d+)$", PARTITIONS.read_text(), re.MULTILINE)
    return [(f"/dev/{name}", backing) for name in names if (backing := _text(f"{SYS}/{name}/loop/backing_file"))]


def find(file: Path, *, name_parts: int = 1) -> list[Path]:
    """Return the loop devices bound to this file, or to one that had this path when it was removed.

    Files are compared by inode, not by path: a device that was attached in another mount namespace shows the path in
    that namespace, or one relative to a mount that no longer exists (of a container that was replaced). Only devices
    whose path ends as the file's are asked, because asking reaches the filesystem below a device, and that may hang:
    `name_parts` is how many last components of the path are the same wherever its directory is mounted. Any other
    device is somebody else's. Raises Unavailable when a device that may be the file's does not answer.
    """
    path = os.path.realpath(file)
    several_names = _has_several_names(file)
    found = []
    for node, backing in _bound():
        if backing == path + DELETED:
            found.append(Path(node))
        elif _ends_alike(backing, path, name_parts):
            if is_bound_to(Path(node), file):
                found.append(Path(node))
        elif several_names and _may_be_bound_to(Path(node), file):
            found.append(Path(node))
    return found


def find_lost(file: Path, *, name_parts: int) -> list[Path]:
    """Return the loop devices that may be bound to a file of this path on a disk that is not mounted any more.

    The kernel shows the path of such a file from the root of its disk, so it is the end of the path that it had.
    """
    path = os.path.realpath(file)
    return [
        Path(node)
        for node, backing in _bound()
        if path.endswith(backing) and backing.count("/") >= name_parts and not is_bound_to(Path(node), file)
    ]


def is_bound_to(device: Path, file: Path) -> bool:
    """Whether the device's backing file is the file that has this path now (same inode).

    Raises Unavailable when this is unknown, because a volume in use must not seem free: also for a device that is
    bound but has no node in this container's /dev.
    """

    def compare() -> bool:
        status = file.stat()
        try:
            descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            if _text(f"{SYS}/{device.name}/loop/backing_file"):
                raise Unavailable(f"{device} is attached, but has no node here; mount the host's /dev") from error
            raise
        try:
            info = fcntl.ioctl(descriptor, GET_STATUS, bytes(INFO_BYTES))
        finally:
            os.close(descriptor)
        return struct.unpack_from("=QQ", info) == (status.st_dev, status.st_ino)

    try:
        return ask(f"the backing file of {device}", compare, ASK_TIMEOUT)
    except OSError as error:
        if error.errno not in ABSENT:
            raise _unavailable(device, error) from error
        return False


def above(device: Path) -> list[Path]:
    """Return the loop devices whose backing file is the node of this device."""
    # The second: attached in a container that was replaced, so its mount of /dev is gone.
    own, seen_from_dev = str(device), f"/{device.name}"
    return [
        Path(node)
        for node, backing in _bound()
        if backing == own or (backing == seen_from_dev and is_bound_to(Path(node), device))
    ]


def is_over_device(number: str) -> bool:
    """Whether the loop device with this number shows another block device, not a file."""
    return bool(_shown_device(number))


def device_behind(number: str) -> str:
    """Return the number of the block device that a loop device shows, "" for any other device.

    A file that it shows is not asked for, because its filesystem may hang.
    """
    node = _shown_device(number)
    if node is None:
        return ""
    sure = attribute(number, "loop/backing_file") == str(node)
    return find_number(node) if sure or _may_be_bound_to(node_of(number), node) else ""


def _shown_device(number: str) -> Path | None:
    """Return the node of the block device that a loop device seems to show, None when it shows a file."""
    backing = attribute(number, "loop/backing_file") or ""
    if backing.startswith("/dev/"):
        return Path(backing)
    # Attached in a container that was replaced, so its mount of /dev is gone.
    if backing.count("/") == 1 and backing != "/" and (BLOCK / backing[1:]).exists():
        return Path("/dev") / backing[1:]
    return None


def _ends_alike(backing: str, path: str, parts: int) -> bool:
    """Whether the path that the kernel shows for a device may be this path, seen from elsewhere."""
    shown, own = backing.strip("/").split("/"), path.strip("/").split("/")
    count = min(parts, len(shown), len(own))
    return shown == [""] or shown[-count:] == own[-count:]  # "/": the file itself is the root of the mount


def _has_several_names(file: Path) -> bool:
    """Whether a regular file has hard links, so that a device may show another name of it."""
    try:
        status = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink > 1


def _may_be_bound_to(device: Path, file: Path) -> bool:
    """As is_bound_to, for a device with another name: without an answer it is somebody else's."""
    try:
        return is_bound_to(device, file)
    except Unavailable:
        return False


def attach(
    host: Host,
    file: Path,
    *,
    read_only: bool = False,
    sector_size: int = 512,
    direct_io: bool | None = None,
    name_parts: int = 1,
) -> Path:
    """Bind a free loop device, whose node is not bound anywhere, to the file; `name_parts` as for find().

    `direct_io`: whether the device writes to the file's disk directly, so that data is not cached twice; None: where
    the file's filesystem is known to keep it (keeps_direct_io). Where the kernel then refuses it (tmpfs before Linux
    6.6), the data is cached twice. Raises Unavailable, and Timeout: then the device may be attached later, and is found
    by the next call.
    """
    direct = keeps_direct_io(file) if direct_io is None else direct_io
    try:
        device = loop_calls.attach(host, file, sector_size=sector_size, read_only=read_only, direct_io=direct)
    except loop_calls.NotKnown:
        device = _attach_by_command(host, file, read_only, sector_size, direct, name_parts)
    if not is_bound_to(device, file):
        actual = attribute(number_of(device), "loop/backing_file")
        raise Unavailable(f"{device} was bound to {file}, but its backing file is {actual}; try again")
    if not is_node_bound(number_of(device)):
        return device
    # A workload still has the node of the device that was here before. As long as this one is taken, the next is free.
    try:
        return attach(host, file, read_only=read_only, sector_size=sector_size, direct_io=direct, name_parts=name_parts)
    finally:
        detach(host, device)


def _attach_by_command(
    host: Host, file: Path, read_only: bool, sector_size: int, direct_io: bool, name_parts: int
) -> Path:
    """Attach by losetup, which needs several calls before Linux 5.8, and may fail between them."""
    words = ("losetup", "--find", "--show", f"--sector-size={sector_size}", *(["--read-only"] if read_only else []))
    if direct_io:
        before = find(file, name_parts=name_parts)
        try:
            return Path(host.run(*words, "--direct-io=on", "--", str(file)).stdout.strip())
        except CommandFailed as error:
            if NO_DIRECT_IO not in error.stderr:
                raise
            for incomplete in set(find(file, name_parts=name_parts)) - set(before):
                detach(host, incomplete)
    return Path(host.run(*words, "--direct-io=off", "--", str(file)).stdout.strip())


def keeps_direct_io(file: Path) -> bool:
    """Whether what is written by direct I/O is certain to be read back: on block devices and some filesystems.

    On others, FUSE among them, a server may mix up requests that are made at the same time.
    """
    try:
        return stat.S_ISBLK(file.stat().st_mode) or filesystem_type(file) in KNOWN_FILESYSTEMS
    except OSError:
        return False  # the attachment has the reason


def filesystem_type(file: Path) -> int:
    """Return the kind of a file's filesystem, as statfs(2) numbers it. Raises OSError."""
    status = ctypes.create_string_buffer(STATFS_BYTES)
    if _LIBC.statfs(os.fsencode(file), status):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(file))
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF


def refresh(host: Host, device: Path) -> None:
    """Let a bound loop device take the new size of its file."""
    loop_calls.take_size(host, device)


def give_up_direct_io(host: Host, device: Path) -> None:
    """Let a bound loop device go through the page cache; it may be in use."""
    loop_calls.give_up_direct_io(host, device)


def detach(host: Host, device: Path) -> None:
    """Free a loop device and wait until it is free: while it is open, the kernel waits for the last close.

    A program that only inspects it (blkid, losetup) closes it at once, and so does a command that is being started and
    has a copy of a descriptor of it. Raises InUse when another keeps it open.
    """
    number = number_of(device)
    before = attribute(number, "loop/backing_file")
    loop_calls.detach(host, device)
    deadline = time.monotonic() + DETACH_TIMEOUT
    while before and attribute(number, "loop/backing_file") == before:
        if time.monotonic() > deadline:
            raise InUse(f"{device} is held open by a process on this node; the kernel frees it when the process ends")
        time.sleep(0.01)


def _text(file: str) -> str:
    """Return what a file says, "" when there is none, or nothing bound. Raises Unavailable."""
    try:
        return os.fsdecode(small_files.read(file)).removesuffix("\n")
    except OSError as error:
        if error.errno not in UNSHOWN:
            raise _unavailable(file, error) from error
        return ""


def _unavailable(path: Path | str, error: OSError) -> Unavailable:
    return Unavailable(
        f"cannot read the backing file of {path}: {error.strerror}; check the kernel log and the number of open files"
    )
