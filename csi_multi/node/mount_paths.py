"""Staging and target paths: made and removed without following a link or touching what is inside."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, InvalidArgument

NODE = "device"  # within a staging directory, the file that a raw block device is bound on


def real(path: Path) -> Path:
    """Return the path as the mount table has it: links resolved in its parents, never in itself."""
    if "\0" in str(path):
        raise InvalidArgument(f"path {str(path)!r} contains NUL")
    return Path(os.path.realpath(path.parent)) / path.name


def require_directory(path: Path) -> None:
    """Raise FailedPrecondition unless this is a directory, and no link to one."""
    status = _status(path)
    if status is None:
        raise FailedPrecondition(f"staging path {path} does not exist; the orchestrator creates it before it stages")
    if not stat.S_ISDIR(status.st_mode):
        raise FailedPrecondition(f"staging path {path} is {_kind(status)}, not a directory; remove it")


def make_directory(path: Path) -> None:
    """Create the directory, or accept an empty one."""
    with _explained(path):
        try:
            path.mkdir(0o750)
        except FileExistsError:
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                raise FailedPrecondition(f"{path} is {_kind(status)}, not a directory; remove it") from None
            if os.listdir(path):
                raise FailedPrecondition(
                    f"directory {path} is not empty, and nothing is mounted on it; move away what is in it"
                ) from None


def make_file(path: Path) -> None:
    """Create the file, or accept an empty one."""
    with _explained(path):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
        except FileExistsError:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size:
                raise FailedPrecondition(f"{path} is {_kind(status)}, not an empty file; remove it") from None


def remove(path: Path) -> None:
    """Remove the empty directory or empty file that was made here; absent is fine."""
    status = _status(path)
    if status is None:
        return
    with _explained(path):
        if stat.S_ISDIR(status.st_mode):
            path.rmdir()
        elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
            path.unlink(missing_ok=True)
        else:
            raise FailedPrecondition(f"{path} is {_kind(status)}, which this driver did not make; remove it by hand")


def _status(path: Path) -> os.stat_result | None:
    with _explained(path):
        try:
            return path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "a file with something in it" if status.st_size else "a file"
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFBLK: "a device node"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a special file")


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FailedPrecondition(f"the parent of {path} does not exist; the orchestrator creates it") from None
    except OSError as error:
        kind = InUse if error.errno == errno.EBUSY else FailedPrecondition
        raise kind(f"{path}: {os.strerror(error.errno or 0).lower()}") from None
