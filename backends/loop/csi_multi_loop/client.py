"""The system calls that change, lock or copy the files of an instance's directory.

Everything that changes the directory goes through Client, so that explain.py can report a creation instead of doing it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from csi_multi.contract import Unavailable
from csi_multi.host import exclusive, file_extents
from csi_multi.host.loopdev import KNOWN_FILESYSTEMS, filesystem_type

from . import labels
from .labels import Label

log = logging.getLogger(__name__)

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FICLONE = 0x40049409  # linux/fs.h
CHUNK = 64 * 2**20  # bytes per copy_file_range: small enough to report progress, large enough to cost nothing
PROGRESS_SECONDS = 5.0  # between two log lines about one copy
# All that an entry may hold (store.py), the labels last: whose it is stays known as long as possible.
ENTRY_FILES = (
    *("image", "sample", "probe", ".volume.json.new", ".snapshot.json.new", ".group.json.new"),
    *("volume.json", "snapshot.json", "group.json"),
)
MAX_LABEL = 2**20  # bytes; a label has a few hundred
REMOVED = 0o1700  # mode of a directory that is removed in place: rwx for the owner, and the sticky bit
REMOVE_ATTEMPTS = 10  # at a directory that another process renames anew
NO_HOLES = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
NO_REFLINK = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)


class InvalidLabelFile(OSError):
    """What has a label's name is no file, or too large for a label."""


class Client:
    """The real calls. Every method raises OSError."""

    def create_directory(self, directory: Path) -> None:
        """Create one of the instance's own directories, and its parents, where they are missing."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def mkdir(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)

    def lock(self, directory: Path, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """Lock a directory in which this operation creates something. Raises as locked() does."""
        return locked(directory, wait=wait)

    def lock_open(self, directory: int, *, wait: float = 0.0) -> AbstractContextManager[None]:
        """As lock(), for a directory that is open. Raises BlockingIOError."""
        return exclusive.locked(directory, fcntl.LOCK_EX, wait=wait)

    def lock_entry(self, directory: Path, *, shared: bool = False) -> AbstractContextManager[None]:
        """Lock an existing volume or snapshot. Raises as locked() does."""
        return locked(directory, shared=shared)

    def empty(self, directory: Path) -> None:
        """Remove the files in one of the driver's directories, if it exists."""
        with suppress(FileNotFoundError):
            for name in os.listdir(directory):
                (directory / name).unlink(missing_ok=True)

    def remove(self, directory: Path) -> None:
        """Remove one of the driver's directories and the files in it, as far as they exist."""
        for name in ENTRY_FILES:  # by name: a listing needs a descriptor, of which none may be left
            (directory / name).unlink(missing_ok=True)
        for attempt in range(REMOVE_ATTEMPTS):
            try:
                return directory.rmdir()
            except FileNotFoundError:
                return None
            except OSError as error:
                # It holds something else, or another process has removed this directory, and renamed an entry that it
                # removes to the same name.
                if error.errno != errno.ENOTEMPTY or attempt + 1 == REMOVE_ATTEMPTS:
                    raise
            self.empty(directory)
        return None

    def mark_removed(self, directory: Path) -> None:
        """Let the mode of a directory that cannot be renamed say that it is being removed. It needs no space."""
        directory.chmod(REMOVED)

    def remove_in_place(self, directory: Path) -> None:
        """As remove(), for a directory that could not be renamed; the mode says so to whoever has to finish it."""
        self.mark_removed(directory)
        self.remove(directory)

    def remove_empty(self, directory: Path) -> None:
        """Remove one of the driver's directories if nothing is in it."""
        with suppress(OSError):
            directory.rmdir()

    def read(self, file: Path) -> bytes:
        """Return what a label holds. Raises InvalidLabelFile."""
        return read_label(file)

    def write_label(self, file: Path, label: Label) -> None:
        """Write a label atomically. It becomes durable when its entry is complete."""
        _write_draft(file, labels.encode(label)).replace(file)

    def replace_label(self, file: Path, label: Label) -> None:
        """Replace a label durably: after a crash either the old or the new one is there."""
        _write_durably(file, labels.encode(label))

    def write_owner(self, file: Path, data: bytes) -> None:
        """Write the owner of a directory durably, as a whole or not at all."""
        _write_durably(file, data)

    def write_note(self, file: Path, data: bytes) -> None:
        """Write a note (directory_notes.py), in the same way. The directory of the notes is created on first use."""
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _write_durably(file, data)

    def remove_note(self, file: Path) -> None:
        file.unlink(missing_ok=True)

    def touch(self, image: Path) -> None:
        image.touch(mode=0o600)

    def link(self, file: Path, image: Path) -> None:
        """Give a file a second name."""
        image.hardlink_to(file)

    def truncate(self, image: Path, size: int) -> None:
        os.truncate(image, size)

    def copy(self, source: Path, image: Path, *, reflink: bool) -> None:
        """Give an image the bytes of another: by sharing its blocks, or by copying what is not a hole."""
        if reflink:
            reflink_file(source, image)
        else:
            copy_file(source, image)

    def can_reflink(self, directory: Path) -> bool:
        """Return whether files in a directory of the driver can share blocks; tried out with two sample files."""
        sample, probe = directory / "sample", directory / "probe"
        sample.touch()
        try:
            reflink_file(sample, probe)
        except OSError as error:
            if error.errno not in NO_REFLINK:
                raise
            return False
        finally:
            for path in (sample, probe):
                path.unlink(missing_ok=True)
        return True

    def sync(self, path: Path) -> None:
        sync_path(path)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)


@contextmanager
def locked(directory: Path, *, shared: bool = False, wait: float = 0.0) -> Iterator[None]:
    """Lock a directory for the block, across processes. Raises FileNotFoundError, BlockingIOError after `wait` seconds.

    Controller and node part may be two processes, so the core's locks do not keep them apart. A flock does, and it
    ends with its process however that ends.
    """
    descriptor = os.open(directory, DIRECTORY_FLAGS)
    try:
        with exclusive.locked(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait=wait):
            if not _is_open_on(descriptor, directory):  # removed or replaced between open and flock
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
            yield
    finally:
        os.close(descriptor)


def read_label(file: str | Path, directory: int | None = None) -> bytes:
    """Return what a file holds; nothing else with its name can make the caller wait.

    Raises InvalidLabelFile, OSError.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # symbolic links in a circle, a socket
            raise InvalidLabelFile(error.strerror) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidLabelFile("a directory, a pipe or a device is in the place of the file")
        data = os.read(descriptor, MAX_LABEL + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_LABEL:
        raise InvalidLabelFile(f"it is larger than {MAX_LABEL} bytes, and no label of this driver is")
    return data


def sync_path(path: Path) -> None:
    """Write a file, a directory or a device to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reflink_file(source: Path, target: Path) -> None:
    """Make the target share all blocks of the source, as of one moment."""
    with source.open("rb") as reading, target.open("wb") as writing:
        fcntl.ioctl(writing, FICLONE, reading.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copy what is not a hole. The target keeps the source's holes and size."""
    with source.open("rb") as reading, target.open("wb") as writing:
        status = os.fstat(reading.fileno())
        os.ftruncate(writing.fileno(), status.st_size)
        progress = _CopyLog(source, status.st_blocks * 512)
        for start, end in file_extents.data_ranges(reading.fileno(), 0, status.st_size):
            _copy_range(reading.fileno(), writing.fileno(), start, end, progress)


def has_data(file: Path) -> bool | None:
    """Return whether a file has anything but holes; None when its filesystem shows none (lseek(2), SEEK_DATA)."""
    with file.open("rb") as reading:
        size = os.fstat(reading.fileno()).st_size
        try:
            start = os.lseek(reading.fileno(), 0, os.SEEK_DATA)
            end = os.lseek(reading.fileno(), start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return False  # there is only a hole
            if error.errno in NO_HOLES:
                return None
            raise
    # A filesystem that does not know holes calls the whole file data, as does any for a file that is full.
    return None if (start, end) == (0, size) and filesystem_type(file) not in KNOWN_FILESYSTEMS else True


def _copy_range(reading: int, writing: int, start: int, end: int, progress: _CopyLog) -> None:
    while start < end:
        copied = os.copy_file_range(reading, writing, min(CHUNK, end - start), start, start)
        if not copied:
            raise Unavailable(
                f"{progress.source} became shorter while it was copied; find the program that writes to it"
            )
        start += copied
        progress.add(copied)


class _CopyLog:
    """Logs how far a long copy is."""

    def __init__(self, source: Path, total: int) -> None:
        self.source = source
        self._total = total
        self._copied = 0
        self._logged_at = time.monotonic()

    def add(self, count: int) -> None:
        self._copied += count
        if time.monotonic() - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = time.monotonic()
            percent = min(100, self._copied * 100 // max(1, self._total))
            log.info("copying %s: %d %% of %d MiB", self.source, percent, self._total >> 20)


def _is_open_on(descriptor: int, directory: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(directory))
    except FileNotFoundError:
        return False


def _write_draft(file: Path, data: bytes) -> Path:
    draft = file.with_name(f".{file.name}.new")
    draft.write_bytes(data)
    return draft


def _write_durably(file: Path, data: bytes) -> None:
    draft = _write_draft(file, data)
    sync_path(draft)
    draft.replace(file)
    sync_path(file.parent)
