"""The storage system of this example: one directory on tmpfs, two files per volume.

    <leaf>.ramdisk         the data; its size is the volume's, and a flock on it keeps other processes away
    <leaf>.ramdisk.json    stamp and format note; the volume exists exactly as long as this file does

An image without a record is half-made or half-removed: the retry begins anew, or sweep() removes it.
Nothing is synced, because nothing here outlives the kernel. Other files are somebody else's.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from csi_multi.contract import (
    AlreadyExists,
    Blank,
    Busy,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Stamp,
    Unavailable,
    ids,
    missing,
)
from csi_multi.host import mounts

IMAGE, RECORD, DRAFT = ".ramdisk", ".ramdisk.json", ".ramdisk.json.new"
PAGE = 4096  # bytes: what tmpfs hands out
RESERVE = 16 * PAGE  # bytes kept free, so that a format note can be written when all else is full


class Record(msgspec.Struct, frozen=True, kw_only=True):
    stamp: Stamp
    blank: Blank


class Store:
    def __init__(self, directory: str, driver: str, cluster: str) -> None:
        self.directory = Path(directory)
        self._owner = (driver, cluster)

    def image(self, leaf: str) -> Path:
        return self.directory / f"{leaf}{IMAGE}"

    def leaves(self, suffix: str = RECORD) -> list[str]:
        """Return the names of all records, or images, in order; whose they are, read() knows."""
        names = (name.removesuffix(suffix) for name in os.listdir(self.directory) if name.endswith(suffix))
        return sorted(name for name in names if ids.LEAF_SHAPE.fullmatch(name))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Refuse to work outside of memory. What the system says of a file is Unavailable: never final."""
        try:
            self._refuse_disk()
            yield
        except OSError as error:
            raise Unavailable(f"{error.filename or self.directory}: {error.strerror}; check the tmpfs") from error

    @contextmanager
    def holding(self, leaf: str, lock: int = fcntl.LOCK_EX, *, create: bool = False) -> Iterator[int]:
        """Open an image and keep others away: controller and node may be two processes. Raises NotFound, Busy."""
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            image = os.open(self.image(leaf), flags, 0o600)
        except FileNotFoundError:
            raise missing("volume", leaf) from None
        try:
            fcntl.flock(image, lock | fcntl.LOCK_NB)  # ends with the process, however that ends
            if not os.fstat(image).st_nlink:
                raise Busy(f"volume {leaf!r} was removed just now; ask again")
            yield image
        except BlockingIOError:
            raise Busy(f"volume {leaf!r} is being worked on; ask again") from None
        finally:
            os.close(image)

    @contextmanager
    def making(self, leaf: str, stamp: Stamp, blank: Blank) -> Iterator[int]:
        """Give an empty image to fill, a volume at the end of the block. If that fails, nothing stays."""
        with self.holding(leaf, create=True) as image:
            if self._load(leaf):
                raise AlreadyExists(f"volume {leaf!r} exists")
            with ExitStack() as undo:
                undo.callback(self.remove, leaf)
                os.ftruncate(image, 0)  # what a process that died left
                yield image
                self.write(leaf, Record(stamp=stamp, blank=blank))
                undo.pop_all()

    def room(self) -> int:
        """Return how large a volume can be made now."""
        facts = os.statvfs(self.directory)
        return max(0, facts.f_bavail * facts.f_frsize - RESERVE) // PAGE * PAGE

    def grow(self, image: int, size: int) -> int:
        """Give an image this size and all of its memory, or change nothing. Raises ResourceExhausted."""
        present = os.fstat(image).st_size
        full = ResourceExhausted(f"{self.directory} has no room for {size - present} bytes; delete volumes")
        if size - present > self.room():
            raise full
        try:
            if size > present:
                os.posix_fallocate(image, present, size - present)
        except OSError as error:
            raise full if error.errno in (errno.ENOSPC, errno.ENOMEM) else error from None
        return size

    def remove(self, leaf: str) -> None:
        """Remove the record first, for it is the volume, and the image last, for it is the lock."""
        for suffix in (RECORD, DRAFT, IMAGE):
            (self.directory / f"{leaf}{suffix}").unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the images that have no record and that no process is at work on."""
        for leaf in self.leaves(IMAGE):
            with suppress(NotFound, Busy, FailedPrecondition), self.holding(leaf):
                if self._load(leaf) is None:
                    self.remove(leaf)

    def read(self, leaf: str) -> Record:
        """Return the record of a volume of ours. Raises NotFound; FailedPrecondition when it is not ours."""
        if (record := self._load(leaf)) is None:
            raise missing("volume", leaf)
        if (record.stamp.driver, record.stamp.cluster) != self._owner:
            owner = f"driver {record.stamp.driver!r} in cluster {record.stamp.cluster!r}"
            raise FailedPrecondition(f"volume {leaf!r} belongs to {owner}; give each its own directory")
        return record

    def write(self, leaf: str, record: Record) -> None:
        draft = self.directory / f"{leaf}{DRAFT}"
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(self.directory / f"{leaf}{RECORD}")

    def _load(self, leaf: str) -> Record | None:
        """Return the record, None where there is none. What cannot be read is not absent: it raises."""
        file = self.directory / f"{leaf}{RECORD}"
        try:
            return msgspec.json.decode(file.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise FailedPrecondition(f"{file} is damaged: {error}; move it away") from None

    def _refuse_disk(self) -> None:
        device = self.directory.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        tmpfs = any(one.fs_type == "tmpfs" for one in mounts.table() if one.number == number)
        if not tmpfs or not os.statvfs(self.directory).f_blocks:  # 0: it may take all memory, and then some
            remedy = f"mount -t tmpfs -o size=4G,mode=0700 tmpfs {self.directory}"
            raise Unavailable(f"{self.directory} is not on a tmpfs with a size limit; {remedy}")
