"""The storage system of this example: one directory on a tmpfs, with two files per volume.

    <leaf>.ramdisk         the image: the data. Its size is the volume's; a flock on it keeps others away
    <leaf>.ramdisk.json    the label: stamp and format state. The volume exists as long as this file does

Nothing is synced, because nothing here outlives the kernel. Other files in the directory are foreign. In a backend of
your own, this module holds the commands or the API calls of your storage system, and nothing else reaches it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from csi_multi.contract import Busy, ResourceExhausted, StorageError, Unavailable, ids, missing
from csi_multi.host import exclusive, mounts, sysfs

from .errors import NO_SPACE, ImageLost, translated

IMAGE, LABEL, DRAFT = ".ramdisk", ".ramdisk.json", ".ramdisk.json.new"
PAGE = 4096  # bytes: what tmpfs allocates
RESERVE = 16 * PAGE  # bytes kept free, so that a format state can be written when all else is full


class Client:
    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    @contextmanager
    def connected(self, action: str) -> Iterator[None]:
        """Run the block, which is named in errors, if the directory is in memory. Raises Unavailable."""
        with translated(action):
            self._refuse_disk()
            yield

    def image(self, leaf: str) -> Path:
        return self.directory / f"{leaf}{IMAGE}"

    def leaves(self, suffix: str = LABEL) -> list[str]:
        """Return the names of all labels, or images, sorted. The label names the owner."""
        names = (name.removesuffix(suffix) for name in os.listdir(self.directory) if name.endswith(suffix))
        return sorted(name for name in names if ids.LEAF_SHAPE.fullmatch(name))

    @contextmanager
    def locked(self, leaf: str, lock: int = fcntl.LOCK_EX, *, create: bool = False) -> Iterator[int]:
        """Open an image and lock it: controller and node may be two processes. Raises NotFound, Busy, ImageLost."""
        try:
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            image = os.open(self.image(leaf), flags, 0o600)
        except FileNotFoundError:
            raise self._without_data(leaf) from None
        try:
            with exclusive.locked(image, lock | fcntl.LOCK_NB):  # ends with the process, however that ends
                status = os.fstat(image)
                if not self._is_image(leaf, status):
                    raise Busy(f"volume {leaf!r} was removed just now; try again")
                if not create and not status.st_size and self.read_label(leaf) is not None:
                    raise self._without_data(leaf)
                yield image
        except BlockingIOError:
            raise Busy(f"volume {leaf!r} is locked by another operation; try again") from None
        finally:
            os.close(image)

    def size(self, leaf: str) -> int:
        """Return a volume's size. Raises NotFound, ImageLost."""
        with suppress(FileNotFoundError):
            if size := self.image(leaf).stat().st_size:
                return size
        raise self._without_data(leaf)

    def read_label(self, leaf: str) -> bytes | None:
        """Return a volume's label, None if there is none. A label that cannot be read raises: it is not absent."""
        try:
            return self.label_file(leaf).read_bytes()
        except FileNotFoundError:
            return None

    def write_label(self, leaf: str, data: bytes) -> None:
        """Write a label atomically. The first one makes the volume exist."""
        draft = self.directory / f"{leaf}{DRAFT}"
        draft.write_bytes(data)
        draft.replace(self.label_file(leaf))

    def label_file(self, leaf: str) -> Path:
        return self.directory / f"{leaf}{LABEL}"

    def available(self) -> int:
        """Return the size of the largest volume that can be created now."""
        status = os.statvfs(self.directory)
        return max(0, status.f_bavail * status.f_frsize - RESERVE) // PAGE * PAGE

    def grow(self, image: int, size: int) -> int:
        """Give an image this size and all of its memory, or change nothing. Raises ResourceExhausted."""
        present, available = os.fstat(image).st_size, self.available()
        full = ResourceExhausted(
            f"{size - present} bytes do not fit: {available} bytes are left in {self.directory}; delete volumes"
        )
        if size - present > available:
            raise full
        try:
            if size > present:
                os.posix_fallocate(image, present, size - present)
        except OSError as error:
            raise full if error.errno in NO_SPACE else error from None
        return size

    def copy(self, source: int, image: int) -> None:
        left = os.fstat(source).st_size
        while left > 0 and (copied := os.copy_file_range(source, image, left)):
            left -= copied

    def remove(self, leaf: str) -> None:
        """Remove the label first, because it is the volume, and the image last, because it is the lock."""
        for suffix in (LABEL, DRAFT, IMAGE):
            (self.directory / f"{leaf}{suffix}").unlink(missing_ok=True)

    def _is_image(self, leaf: str, status: os.stat_result) -> bool:
        """Whether the path still leads to this open file."""
        with suppress(FileNotFoundError):
            return os.path.samestat(self.image(leaf).lstat(), status)
        return False

    def _without_data(self, leaf: str) -> StorageError:
        """Return the error for a volume whose image is missing or empty."""
        if self.read_label(leaf) is None:
            return missing("volume", leaf)
        return ImageLost(
            f"volume {leaf!r} has a label, but its image {self.image(leaf)} is missing or empty; restore the image, or "
            "move the label away when the data is lost"
        )

    def _refuse_disk(self) -> None:
        number = sysfs.format_number(self.directory.stat().st_dev)
        tmpfs = any(mount.fs_type == "tmpfs" for mount in mounts.table() if mount.number == number)
        if not tmpfs or not os.statvfs(self.directory).f_blocks:  # 0: without a limit it may take all memory
            remedy = f"mount -t tmpfs -o size=4G,mode=0700 tmpfs {self.directory}"
            raise Unavailable(f"{self.directory} is not on a tmpfs with a size limit; mount one: {remedy}")
