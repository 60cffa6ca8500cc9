"""The lock of a volume group, which every lvm command takes: while the driver has it, none of them runs.

lvm locks a file with flock(2), and removes the file when it has unlocked it, so who gets the lock looks whether the
file is still there (lvm's lib/misc/lvm-flock.c). The kernel releases the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_multi.contract import Busy, Unavailable

PAUSE = 0.02  # seconds between two attempts


@contextmanager
def locked(directory: Path, group: str, wait: float) -> Iterator[None]:
    """Keep all lvm commands that change or read the group waiting for the block, in which none may be run.

    Raises Busy when it is not free within so many seconds, Unavailable.
    """
    path, until = directory / f"V_{group}", time.monotonic() + wait
    while (descriptor := _lock(path)) is None:
        if time.monotonic() > until:
            raise Busy(f"volume group {group} was locked by other lvm commands for {wait:g} s; try again")
        time.sleep(PAUSE)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that is being started has a copy of the descriptor
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Return the descriptor of the locked file, None while another process has the lock."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(
            f"lvm's lock file {path} cannot be opened: {error.strerror}; mount the directory into this container"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        present = path.stat()
        if os.path.samestat(present, os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
