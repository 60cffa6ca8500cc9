"""Staging and target paths: created and removed without following a link or touching what is inside."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, InvalidArgument

BLOCK_FILE = "device"  # in a staging directory: the file that the node of a raw block device is bound on


def resolve_parent(path: Path) -> Path:
    """Return the path as the mount table has it: links are resolved in its parents, not in its last part."""
    if "\0" in str(path):
        raise InvalidArgument(f"path {str(path)!r} contains NUL")
    return Path(os.path.realpath(path.parent)) / path.name


def of_staging(*staging: Path | str) -> list[Path]:
    """Return the paths at which a volume may be mounted that is staged at one of these paths."""
    return [path for one in staging for path in (Path(one), Path(one) / BLOCK_FILE)]


def require_directory(path: Path) -> None:
    """Raise FailedPrecondition unless this is a directory, not a link to one."""
    status = _status(path)
    if status is None:
        raise FailedPrecondition(f"staging path {path} does not exist; the orchestrator creates it before it stages")
    if not stat.S_ISDIR(status.st_mode):
        raise FailedPrecondition(f"staging path {path} is {_kind(status)}, not a directory; remove it")


def make_directory(path: Path) -> None:
    """Create the directory, or accept an empty one."""
    with _storage_errors(path):
        try:
            path.mkdir(0o750)
        except FileExistsError:
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                raise FailedPrecondition(f"{path} is {_kind(status)}, not a directory; remove it") from None
            if os.listdir(path):
                raise FailedPrecondition(
                    f"directory {path} is not empty, and nothing is mounted on it; move its content away"
                ) from None


def make_file(path: Path) -> None:
    """Create the file, or accept an empty one."""
    with _storage_errors(path):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640))
        except FileExistsError:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size:
                raise FailedPrecondition(f"{path} is {_kind(status)}, not an empty file; remove it") from None


def remove(path: Path) -> None:
    """Remove the empty directory or empty file that this driver has created. Succeeds when it does not exist."""
    status = _status(path)
    if status is None:
        return
    with _storage_errors(path):
        if stat.S_ISDIR(status.st_mode):
            path.rmdir()
        elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
            path.unlink(missing_ok=True)
        else:
            raise FailedPrecondition(f"{path} is {_kind(status)}, which this driver did not create; remove it by hand")


def _status(path: Path) -> os.stat_result | None:
    with _storage_errors(path):
        try:
            return path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return "a file that is not empty" if status.st_size else "a file"
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFBLK: "a device node"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a special file")


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into errors of the contract."""
    try:
        yield
    except FileNotFoundError:
        raise FailedPrecondition(f"the parent of {path} does not exist; the orchestrator creates it") from None
    except OSError as error:
        kind = InUse if error.errno == errno.EBUSY else FailedPrecondition
        raise kind(f"{path}: {os.strerror(error.errno or 0).lower()}") from None
