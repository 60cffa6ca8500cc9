"""Copy an image: by sharing its blocks where the filesystem can, else by copying what is not a hole."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from csi_multi.contract import Unavailable

log = logging.getLogger(__name__)

FICLONE = 0x40049409  # linux/fs.h
CHUNK = 64 * 2**20  # bytes per copy_file_range: often enough to report, rarely enough to cost nothing
REPORT = 5.0  # seconds between two lines of progress
CANNOT = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)


def can_reflink(directory: Path) -> bool:
    """Whether files of the directory's filesystem can be reflinked, found out by doing it."""
    sample, probe = directory / "sample", directory / "probe"
    sample.touch()
    try:
        reflink(sample, probe)
    except OSError as error:
        if error.errno not in CANNOT:
            raise
        return False
    finally:
        for path in (sample, probe):
            path.unlink(missing_ok=True)
    return True


def reflink(source: Path, target: Path) -> None:
    """Make the target share all blocks of the source, as of one moment."""
    with source.open("rb") as reading, target.open("wb") as writing:
        fcntl.ioctl(writing, FICLONE, reading.fileno())


def copy(source: Path, target: Path) -> None:
    """Copy what is not a hole. The target keeps the source's holes and size."""
    with source.open("rb") as reading, target.open("wb") as writing:
        status = os.fstat(reading.fileno())
        os.ftruncate(writing.fileno(), status.st_size)
        progress = _Progress(source, status.st_blocks * 512)
        position = 0
        while position < status.st_size:
            try:
                start = os.lseek(reading.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # only a hole is left
                raise
            position = os.lseek(reading.fileno(), start, os.SEEK_HOLE)
            _copy_range(reading.fileno(), writing.fileno(), start, position, progress)


def _copy_range(reading: int, writing: int, start: int, end: int, progress: _Progress) -> None:
    while start < end:
        done = os.copy_file_range(reading, writing, min(CHUNK, end - start), start, start)
        if not done:
            raise Unavailable(f"{progress.source} became shorter while it was copied; check who writes there")
        start += done
        progress.add(done)


class _Progress:
    """Says now and then how far a long copy is."""

    def __init__(self, source: Path, total: int) -> None:
        self.source = source
        self._total = total
        self._done = 0
        self._said = time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        if time.monotonic() - self._said >= REPORT:
            self._said = time.monotonic()
            percent = min(100, self._done * 100 // max(1, self._total))
            log.info("copying %s: %d %% of %d MiB", self.source, percent, self._total >> 20)
