"""Exclusive use of block devices (O_EXCL) and of directories and files (flock), also while commands are started.

A process that another thread is starting has a copy of each descriptor for some milliseconds (command.py), so what was
closed here can still be held. A flock is therefore released before its descriptor is closed, and a device that seems
held is opened once more when the present starts are over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import Unavailable
from .command import wait_for_starts

LOCK_PAUSE = 0.01  # seconds between two tries to get a flock
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # whether the device is held was not even asked


def open_device(path: Path, flags: int) -> int:
    """Open a block device and return the descriptor. Raises OSError.

    With O_EXCL that is EBUSY while the device is mounted in any mount namespace, below another device, or open with
    O_EXCL, but not while its node is bound somewhere (raw block).
    """
    flags |= os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    wait_for_starts()
    return os.open(path, flags)


def is_held(path: Path) -> bool:
    """Whether open_device finds the device in use. One that does not exist is not. Raises Unavailable if unknown."""
    try:
        os.close(open_device(path, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise Unavailable(f"cannot open {path} to see whether it is in use: {error.strerror}; try again") from None
        return error.errno == errno.EBUSY
    return False


@contextlib.contextmanager
def locked(descriptor: int, operation: int, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a flock (LOCK_EX or LOCK_SH). Raises BlockingIOError when others hold it for more than `wait` seconds."""
    until = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
        time.sleep(LOCK_PAUSE)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
