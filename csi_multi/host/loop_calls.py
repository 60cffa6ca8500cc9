"""The kernel's calls for loop devices (linux/loop.h), in place of losetup.

Each may wait for the filesystem of the backing file without a limit, so it is made by `Host.call`, and opens and closes
what it uses. All raise Unavailable, and Timeout.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..contract.errors import Unavailable
from ..contract.machine import Host

T = TypeVar("T")

CONTROL = Path("/dev/loop-control")
_CLEAR, _SET_CAPACITY, _SET_DIRECT_IO, _CONFIGURE = 0x4C01, 0x4C07, 0x4C08, 0x4C0A
_GET_FREE = 0x4C82
_READ_ONLY, _DIRECT_IO = 1, 16  # LO_FLAGS_*
# struct loop_config: file, sector size, and a struct loop_info64 of which these are flags and name.
_CONFIGURATION = struct.Struct("=II 52x I 64s 112x 64x")
_NAME_BYTES = 63  # for losetup without sysfs; the kernel knows the whole path
# Another process was faster, or removes the device (LOOP_CTL_REMOVE), or the page cache of the device is not empty yet.
_LOST_RACES = (errno.EBUSY, errno.ENXIO, errno.ENODEV, errno.EAGAIN)
_RACE_SECONDS, _RACE_PAUSE = 10.0, 0.001


class NotKnown(Exception):
    """The kernel does not have the call: it is older than Linux 5.8. Or it does not have the sector size."""


def attach(host: Host, file: Path, *, sector_size: int, read_only: bool, direct_io: bool) -> Path:
    """Bind a free device to a file; return the device. Where the file has no direct I/O, it is bound without.

    Raises NotKnown. A call that was given up may bind a device later. It stays bound, because the retry may use it.
    """
    call = functools.partial(_attach, file, sector_size, read_only, direct_io)
    return _make(host, f"{file} cannot be attached to a loop device", call, "--find", str(file))


def detach(host: Host, device: Path) -> None:
    """Unbind a device from its file, if it is bound; while another has it open, at that one's close."""
    _make(host, f"{device} cannot be detached", lambda: _detach(device), "--detach", str(device))


def take_size(host: Host, device: Path) -> None:
    """Let a device take the size of its file."""
    call = functools.partial(_control, device, _SET_CAPACITY)
    _make(host, f"{device} cannot take the size of its file", call, "--set-capacity", str(device))


def give_up_direct_io(host: Host, device: Path) -> None:
    """Let a device go through the page cache."""
    call = functools.partial(_control, device, _SET_DIRECT_IO)
    _make(host, f"{device} cannot do without direct I/O", call, "--direct-io=off", str(device))


def _make(host: Host, problem: str, call: Callable[[], T], *words: str) -> T:
    try:
        return host.call(call, "losetup", *words)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise Unavailable(f"{problem}: {where}{os.strerror(error.errno or 0).lower()}; see the kernel log") from None


def _attach(file: Path, sector_size: int, read_only: bool, direct_io: bool) -> Path:
    access = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
    descriptor, is_direct = _open(file, access, direct_io)
    try:
        flags = (_READ_ONLY if read_only else 0) | (_DIRECT_IO if is_direct else 0)
        configuration = _CONFIGURATION.pack(descriptor, sector_size, flags, os.fsencode(file)[:_NAME_BYTES])
        deadline = time.monotonic() + _RACE_SECONDS
        while True:
            try:
                return _configure_free(access, configuration)
            except OSError as error:
                if error.errno not in _LOST_RACES or time.monotonic() > deadline:
                    raise
            time.sleep(_RACE_PAUSE)
    finally:
        os.close(descriptor)


def _open(file: Path, access: int, direct_io: bool) -> tuple[int, bool]:
    """Return a descriptor, and whether it has direct I/O."""
    if direct_io:
        try:
            return os.open(file, access | os.O_DIRECT), True
        except OSError as error:
            if error.errno != errno.EINVAL:  # as tmpfs before Linux 6.6
                raise
    return os.open(file, access), False


def _configure_free(access: int, configuration: bytes) -> Path:
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        device = Path(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}")
    finally:
        os.close(control)
    descriptor = os.open(device, access)
    try:
        fcntl.ioctl(descriptor, _CONFIGURE, configuration)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTTY):
            raise NotKnown from None
        raise
    finally:
        os.close(descriptor)
    return device


def _detach(device: Path) -> None:
    try:
        _control(device, _CLEAR)
    except OSError as error:
        if error.errno != errno.ENXIO:  # not bound any more
            raise


def _control(device: Path, call: int) -> None:
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)  # one that was open for writing would be probed by udev
    try:
        fcntl.ioctl(descriptor, call, 0)
    finally:
        os.close(descriptor)
