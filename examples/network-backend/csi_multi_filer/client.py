"""The storage system of this example: one directory that all nodes mount (NFS), with a few files per volume.

    <leaf>.filer           the image: the data. Its size is the volume's; a flock on it keeps others away
    <leaf>.filer.json      the label: stamp and format state. The volume exists as long as this file does
    <leaf>.filer.json.new  the draft: without a label, it says that the image is incomplete
    <leaf>.filer.open      the holder: the node that may have the device open; empty or absent: none
    .filer                 the mark, made by hand: where it is missing, the share is not mounted

Whatever is answered was synced before. Other files are foreign, an image with data but neither label nor draft too. In
a backend of your own, this module holds the commands or the API calls of your storage system; nothing else reaches it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from csi_multi.contract import Busy, ResourceExhausted, StorageError, Unavailable, ids, missing
from csi_multi.host import bounded, exclusive

from .errors import NO_SPACE, ImageLost, translated

Answer = TypeVar("Answer")

IMAGE = ".filer"
LABEL, HOLDER, DRAFT = f"{IMAGE}.json", f"{IMAGE}.open", ".new"
MARK = ".filer"
BLOCK = 4096  # bytes: the unit of sizes
RESERVE = 16 * BLOCK  # bytes kept free, so that a format state can be written when all else is full
ANSWER_SECONDS = 5.0  # for which the end of use on a node waits for the share, whose server may be gone


class Client:
    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    @contextmanager
    def connected(self, action: str) -> Iterator[None]:
        """Run the block, which is named in errors, if the share is mounted, and stays so. Raises Unavailable.

        The directory is open meanwhile, so that it can be unmounted by force only; then the answer of the block counts
        for nothing: it was about the directory below.
        """
        with translated(action):
            directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._refuse_unmounted(directory)
                try:
                    yield
                except StorageError:
                    self._refuse_unmounted(directory)
                    raise
                self._refuse_unmounted(directory)
            finally:
                os.close(directory)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Return the answer of a function that only looks. Raises Unavailable when the share hangs."""
        return bounded.ask(f"the share at {self.directory}", question, ANSWER_SECONDS)

    def image(self, leaf: str) -> Path:
        return self._file(leaf, IMAGE)

    def leaves(self, suffix: str = LABEL) -> list[str]:
        """Return the names of all labels, images or holders, sorted. The label names the owner."""
        names = (name.removesuffix(suffix) for name in os.listdir(self.directory) if name.endswith(suffix))
        return sorted(name for name in names if ids.LEAF_SHAPE.fullmatch(name))

    @contextmanager
    def locked(self, leaf: str, lock: int = fcntl.LOCK_EX, *, create: bool = False) -> Iterator[int]:
        """Open an image and lock it, for all processes on all nodes. Raises NotFound, Busy, ImageLost."""
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
        return self._read(self.label_file(leaf))

    def read_draft(self, leaf: str) -> bytes | None:
        return self._read(self._file(leaf, LABEL + DRAFT))

    def write_draft(self, leaf: str, data: bytes) -> None:
        self._write(self._file(leaf, LABEL + DRAFT), data)

    def commit(self, leaf: str) -> None:
        """Make the draft the label. The first one makes the volume exist."""
        self._rename(self._file(leaf, LABEL + DRAFT), self.label_file(leaf))

    def label_file(self, leaf: str) -> Path:
        return self._file(leaf, LABEL)

    def holder(self, leaf: str) -> str:
        """Return the node that may have the device open; "" when none has.

        With O_CREAT the server is asked for the file: what an NFS client remembers of it may be that there was none.
        """
        holder = os.open(self.holder_file(leaf), os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            return os.read(holder, BLOCK).decode()
        finally:
            os.close(holder)

    def is_held_by(self, leaf: str, node: str) -> bool:
        """Whether this node is the holder, asked on it: it knows what it wrote itself."""
        return self._read(self.holder_file(leaf)) == node.encode()

    def start_holder(self, leaf: str) -> None:
        """Give a new volume its holder: none. Later only the content of the file changes."""
        self.holder_file(leaf).unlink(missing_ok=True)  # of a volume that was removed by hand
        self.holder_file(leaf).touch(exist_ok=False)

    def hold(self, leaf: str, node: str) -> None:
        """Make a node the holder, under the lock. A process that dies before the name is written leaves none."""
        self._write(self.holder_file(leaf), node.encode())

    def release(self, leaf: str) -> None:
        """Make no node the holder. The file stays: its absence may be seen late."""
        self._write(self.holder_file(leaf), b"")

    def holder_file(self, leaf: str) -> Path:
        return self._file(leaf, HOLDER)

    def available(self) -> int:
        """Return the size of the largest volume that can be created now."""
        status = os.statvfs(self.directory)
        return max(0, status.f_bavail * status.f_frsize - RESERVE) // BLOCK * BLOCK

    def refuse_full(self, more: int) -> None:
        """Raise ResourceExhausted unless this many bytes can be added now."""
        if more > self.available():
            raise self._full(more)

    def grow(self, image: int, size: int) -> None:
        """Give an image this size and all of its space, or change nothing. Raises ResourceExhausted."""
        present = os.fstat(image).st_size
        try:
            if size > present:
                os.posix_fallocate(image, present, size - present)
        except OSError as error:
            os.ftruncate(image, present)
            raise self._full(size - present) if error.errno in NO_SPACE else error from None
        os.fsync(image)

    def copy(self, source: int, image: int) -> None:
        """Copy all bytes. They are never shared with the source, because a shared block needs space when written."""
        done = 0
        while copied := os.sendfile(image, source, done, os.fstat(source).st_size - done):
            done += copied
        os.fsync(image)

    def remove(self, leaf: str, image: int) -> None:
        """Remove a volume, whose locked image this is. After the first step it is an incomplete one."""
        with suppress(FileNotFoundError):
            self._rename(self.label_file(leaf), self._file(leaf, LABEL + DRAFT))
        os.ftruncate(image, 0)  # an empty image needs no draft to be known as a remainder
        os.fsync(image)
        for suffix in (HOLDER, LABEL + DRAFT, IMAGE):
            self._file(leaf, suffix).unlink(missing_ok=True)
        self._sync(self.directory)

    def _is_image(self, leaf: str, status: os.stat_result) -> bool:
        """Whether the path still leads to this open file. Its link count says nothing: NFS renames what is open."""
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

    def _full(self, more: int) -> ResourceExhausted:
        return ResourceExhausted(
            f"{more} bytes do not fit: {self.available()} bytes are left in {self.directory}; delete volumes"
        )

    def _file(self, leaf: str, suffix: str) -> Path:
        return self.directory / f"{leaf}{suffix}"

    def _read(self, file: Path) -> bytes | None:
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, file: Path, data: bytes) -> None:
        file.write_bytes(data)
        self._sync(file)
        self._sync(self.directory)

    def _rename(self, file: Path, name: Path) -> None:
        file.replace(name)
        self._sync(self.directory)

    def _sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _refuse_unmounted(self, directory: int) -> None:
        """Raise Unavailable unless this open directory has the mark, and its path still leads to it."""
        if not os.path.samestat(self.directory.stat(), os.fstat(directory)):
            raise Unavailable(f"{self.directory} was unmounted meanwhile; try again when the share is mounted")
        if not (self.directory / MARK).is_file():
            raise Unavailable(
                f"{self.directory} has no file {MARK!r}; mount the share there, and create the file once on a new share"
            )
