"""Staging and target paths: created, opened and removed without following a link or touching what is inside.

Every step goes through a descriptor of the parent directory, which was opened without following a link. So a process
that replaces a directory by a link gets an error, and no mount elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, InvalidArgument, Unavailable

BLOCK_FILE = "device"  # in a staging directory: the file that the node of a raw block device is bound on
_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_parent(path: Path) -> Path:
    """Return the path as the mount table has it: links are resolved in its parents, not in its last part."""
    if "\0" in str(path):
        raise InvalidArgument(f"path {str(path)!r} contains NUL")
    return _real(path.parent) / path.name


def _real(directory: Path) -> Path:
    try:
        return Path(os.path.realpath(directory))
    except OSError as error:  # it was replaced at this moment
        raise Unavailable(f"{directory}: {os.strerror(error.errno or 0).lower()}; try again") from None


def resolve_target(target: Path, staging: Path) -> Path:
    """Return the target path with links resolved only in the orchestrator's directory, which both paths share.

    Operators link that directory elsewhere. Links below it are left, and are refused when the path is opened.
    """
    resolved = resolve_parent(target)
    if ".." in target.parts or not (target.is_absolute() and staging.is_absolute()):
        return resolved
    shared = os.path.commonpath((target.parent, staging.parent))
    return _real(Path(shared)) / target.relative_to(shared)


def leads_through_link(target: Path, staging: Collection[Path]) -> bool:
    """Whether a link leads to this target below the orchestrator's directory, which holds the staging paths."""
    for parent in target.parents:
        real = _real(parent)
        if any(path.is_relative_to(real) for path in staging):
            return real / target.relative_to(parent) != resolve_parent(target)
    return False


def of_staging(*staging: Path | str) -> list[Path]:
    """Return the paths at which a volume may be mounted that is staged at one of these paths."""
    return [path for one in staging for path in (Path(one), Path(one) / BLOCK_FILE)]


@contextlib.contextmanager
def opened_parent(path: Path) -> Iterator[int]:
    """Yield a descriptor of the parent directory; no part of the path may be a link. Raises OSError."""
    descriptor = os.open("/", _PATH | os.O_DIRECTORY)
    try:
        for part in path.parent.parts[1:]:
            below = os.open(part, _PATH | os.O_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened(path: Path, *, directory: bool) -> Iterator[int]:
    """Yield a descriptor of a directory, or of a file or device node. Raises FailedPrecondition."""
    with _storage_errors(path), opened_parent(path) as parent:
        descriptor = os.open(path.name, _PATH, dir_fd=parent)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode) != directory or stat.S_ISLNK(status.st_mode):
            raise FailedPrecondition(f"{path} is {_kind(status)}, not {'a directory' if directory else 'a file'}")
        yield descriptor
    finally:
        os.close(descriptor)


def await_renames(directory: int) -> None:
    """Wait for the end of a rename of this directory, given as a descriptor, that is under way now.

    The kernel locks a directory while an entry of it is renamed or removed. A file needs no wait: it is locked itself
    while it is renamed, and while something is mounted on it.
    """
    with contextlib.suppress(OSError):
        parent = os.open("..", _PATH | os.O_DIRECTORY, dir_fd=directory)
        try:
            os.rmdir(f".{uuid.uuid4().hex}", dir_fd=parent)  # takes the lock; there is nothing with this name
        finally:
            os.close(parent)


def require_directory(path: Path) -> None:
    """Raise FailedPrecondition unless this is a directory, not a link to one."""
    status = _status(path)
    if status is None:
        raise FailedPrecondition(f"staging path {path} does not exist; the orchestrator creates it before it stages")
    if not stat.S_ISDIR(status.st_mode):
        raise FailedPrecondition(f"staging path {path} is {_kind(status)}, not a directory; remove it")


def make_directory(path: Path) -> None:
    """Create the directory, or accept an empty one."""
    with _storage_errors(path), opened_parent(path) as parent:
        try:
            os.mkdir(path.name, 0o750, dir_fd=parent)
        except FileExistsError:
            status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                raise FailedPrecondition(f"{path} is {_kind(status)}, not a directory; remove it") from None
            if _holds_entries(path.name, parent):
                raise FailedPrecondition(
                    f"directory {path} is not empty, and nothing is mounted on it; move its content away"
                ) from None


def make_file(path: Path) -> None:
    """Create the file, or accept an empty one."""
    with _storage_errors(path), opened_parent(path) as parent:
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.close(os.open(path.name, flags, 0o640, dir_fd=parent))
        except FileExistsError:
            status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode) or status.st_size:
                raise FailedPrecondition(f"{path} is {_kind(status)}, not an empty file; remove it") from None


def remove(path: Path) -> None:
    """Remove the empty directory or empty file that this driver has created. Succeeds when it does not exist."""
    status = _status(path)
    if status is None:
        return
    with _storage_errors(path), opened_parent(path) as parent:
        if stat.S_ISDIR(status.st_mode):
            os.rmdir(path.name, dir_fd=parent)
        elif stat.S_ISREG(status.st_mode) and status.st_size == 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path.name, dir_fd=parent)
        else:
            raise FailedPrecondition(f"{path} is {_kind(status)}, which this driver did not create; remove it by hand")


def _holds_entries(name: str, parent: int) -> bool:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        return bool(os.listdir(descriptor))
    finally:
        os.close(descriptor)


def _status(path: Path) -> os.stat_result | None:
    with _storage_errors(path):
        try:
            with opened_parent(path) as parent:
                return os.stat(path.name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
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
    except NotADirectoryError:
        raise FailedPrecondition(
            f"a part of {path} is a symbolic link or no directory; put a directory there, bound instead of linked"
        ) from None
    except OSError as error:
        kind = InUse if error.errno == errno.EBUSY else FailedPrecondition
        raise kind(f"{path}: {os.strerror(error.errno or 0).lower()}") from None
