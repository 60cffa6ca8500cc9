"""Errors of the storage system, translated to the contract's errors.

An error of a system call is never proof that a volume does not exist, so it becomes Unavailable: the orchestrator
tries again. Only Client.grow, which undoes what it did, turns "no space" into ResourceExhausted.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi.contract import Unavailable

NO_SPACE = (errno.ENOSPC, errno.ENOMEM)


class ImageLost(Unavailable):
    """A volume's label is there, and its data is not."""


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn an OSError into Unavailable, which names the action and the file."""
    try:
        yield
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        raise Unavailable(f"{action} failed: {file}{error.strerror}; check the tmpfs") from error
