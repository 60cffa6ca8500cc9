"""Space of the storage that somebody else takes: by Storage.occupy, else by files beside those of the backend."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from csi_multi.contract import ListVolumes
from csi_multi.host.command import LocalHost

from .assertions import CheckSkipped
from .context import CheckContext, pages

T = TypeVar("T")

NO_LIMIT = 1 << 62  # bytes: a capacity that is larger is none
EVERYTHING = 1 << 60  # bytes: all that is left
SMALLEST = 4096  # bytes that are taken at once
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def occupied(t: CheckContext, size: int) -> Iterator[None]:
    """Take this many bytes of the storage, or all that is left, for the block. Raises CheckSkipped."""
    with ExitStack() as taken:
        if t.storage.occupy:
            taken.enter_context(t.storage.occupy(size))
        for directory in () if t.storage.occupy else filesystems(t):
            taken.enter_context(occupied_by_a_file(directory, size))
        yield


@contextmanager
def filled_by_others(t: CheckContext, most: int, make: Callable[[], T]) -> Iterator[T]:
    """Yield what a function creates, and take all space that is left meanwhile. Raises CheckSkipped.

    It is done only if nobody else can need that space: no other volume, no filesystem of more than `most` bytes.
    """
    volumes = pages(t.client.list_volumes) if ListVolumes in t.features else t.resources()
    if volumes:
        raise CheckSkipped(
            "there are other volumes on the storage, and they may need its space; give the kit one without volumes"
        )
    for directory in () if t.storage.occupy else filesystems(t):
        status = os.statvfs(directory)
        if (total := status.f_blocks * status.f_frsize) > most:
            raise CheckSkipped(
                f"the filesystem of {directory} has {total} bytes, more than {most}, and others may need them: give "
                "Storage.occupy, or Storage.files on a smaller filesystem of their own"
            )
    made = make()
    with occupied(t, EVERYTHING):
        yield made


def filesystems(t: CheckContext) -> list[Path]:
    """Return one of Storage.files for each filesystem. Raises CheckSkipped where there is none."""
    if not t.storage.files:
        raise CheckSkipped("neither Storage.occupy nor Storage.files given")
    return list({directory.stat().st_dev: directory for directory in t.storage.files}.values())


def free_space(t: CheckContext) -> int:
    """Return the bytes that can still be written to the filesystem of Storage.files that has the most."""
    return max(status.f_bavail * status.f_frsize for status in map(os.statvfs, filesystems(t)))


def beside(directory: Path) -> Path:
    """Return where on the filesystem of a directory somebody else can have files: outside of it, if possible."""
    return directory.parent if directory.parent.stat().st_dev == directory.stat().st_dev else directory


@contextmanager
def occupied_by_a_file(directory: Path, size: int) -> Iterator[None]:
    """Take space of a filesystem: beside the directory if that is the same filesystem, else in it."""
    place = beside(directory)
    try:
        with tempfile.NamedTemporaryFile(prefix="kit-occupied-", dir=place) as file:
            status = os.statvfs(place)
            allocate(file.fileno(), min(size, status.f_bfree * status.f_frsize))
            yield
    finally:
        LocalHost().run("sync", "--file-system", str(place))  # btrfs gives space back when it commits


def allocate(descriptor: int, size: int) -> None:
    """Allocate this many bytes for a file, or as many as there are."""
    present, step = 0, size
    while present < size and step >= SMALLEST:
        step = min(step, size - present)
        try:
            os.posix_fallocate(descriptor, present, step)
        except OSError as error:
            if error.errno not in FULL:
                raise
            step = step // 2 // SMALLEST * SMALLEST
        else:
            present += step
