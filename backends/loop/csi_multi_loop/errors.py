"""Errors of the operating system, translated to the contract's errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi.contract import OutOfRange, ResourceExhausted, StorageError, Unavailable

ERRNO_ERRORS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (ResourceExhausted, "delete volumes or snapshots, or grow the filesystem"),
    errno.EDQUOT: (ResourceExhausted, "raise the quota"),
    errno.EFBIG: (OutOfRange, "the filesystem cannot hold a file of this size; request a smaller volume"),
    errno.EROFS: (Unavailable, "check the kernel log, and mount the filesystem writable again"),
    errno.EIO: (Unavailable, "check the disk and the kernel log"),
}
OTHER_ERROR = (Unavailable, "check the directory and the kernel log")


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn an OSError into an error of the contract that names the action and the file."""
    try:
        yield
    except OSError as error:
        kind, remedy = ERRNO_ERRORS.get(error.errno or 0, OTHER_ERROR)
        file = f"{error.filename}: " if error.filename else ""
        raise kind(f"{action} failed: {file}{error.strerror or error}; {remedy}") from error
