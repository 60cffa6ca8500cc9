"""Refuse, across processes, a second operation on one directory.

The controller and the node part are processes of their own, so the core's locks do not keep them
apart. A flock does, and it ends with its process however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def held(directory: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a directory for the block. Raises FileNotFoundError, BlockingIOError when it is held."""
    descriptor = os.open(directory, FLAGS)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        if not _is(descriptor, directory):  # removed or replaced between open and flock
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
        yield
    finally:
        os.close(descriptor)


def _is(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(directory))
    except FileNotFoundError:
        return False
