"""What an error of the operating system means to the orchestrator."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi.contract import OutOfRange, ResourceExhausted, StorageError, Unavailable

MEANINGS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (ResourceExhausted, "delete volumes or snapshots, or grow the filesystem"),
    errno.EDQUOT: (ResourceExhausted, "raise the quota"),
    errno.EFBIG: (OutOfRange, "the filesystem cannot hold a file of this size"),
    errno.EROFS: (Unavailable, "check the kernel log, and mount the filesystem writable again"),
    errno.EIO: (Unavailable, "check the disk and the kernel log"),
}
OTHER = (Unavailable, "check the directory and the kernel log")


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn an OSError into the narrowest error of the tree, saying what was being done to what."""
    try:
        yield
    except OSError as error:
        kind, remedy = MEANINGS.get(error.errno or 0, OTHER)
        what = f"{error.filename}: " if error.filename else ""
        raise kind(f"{doing} failed: {what}{error.strerror or error}; {remedy}") from error
