"""volume_mount_group: makes everything on a volume accessible to a group, safely when interrupted."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import InvalidArgument, Unavailable
from ..host import mounts

log = logging.getLogger(__name__)

_DIRECTORY_BITS = stat.S_ISGID | 0o070
_FILE_BITS = 0o060
MAX_GROUP_ID = 2**32 - 2
_PASSES = 3  # at most, over a tree that changes at the same time


def parse(group: str) -> int | None:
    """Return the numeric id; None when no group is requested. Raises InvalidArgument."""
    if not group:
        return None
    if not (group.isascii() and group.isdecimal() and len(group) <= 10 and int(group) <= MAX_GROUP_ID):
        raise InvalidArgument(f"volume_mount_group {group!r} is not a group id; use a number from 0 to {MAX_GROUP_ID}")
    return int(group)


def apply(root: Path, gid: int) -> None:
    """Change group and permissions of the tree, unless its root shows that this is complete.

    The root loses its set-group-id bit first and gets it back last. So an interrupted chgrp is never treated as
    complete, neither for the new group nor for the former one.
    """
    try:
        status = root.stat()
        if status.st_mode & stat.S_ISGID:
            if status.st_gid == gid:
                return
            root.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_ISGID)
        for _ in range(_PASSES):
            if _change_tree(root, gid):
                break
        os.chown(root, -1, gid)
        root.chmod(stat.S_IMODE(root.stat().st_mode) | _DIRECTORY_BITS)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"changing the group of {root} to {gid} failed: {reason}; the next try repeats it") from None


def _change_tree(root: Path, gid: int) -> bool:
    """Return False when a directory vanished before it was reached: it may have moved to a place visited before."""
    other_mounts = {mount.target for mount in mounts.table() if mount.target.startswith(f"{root}/")}
    complete = True
    pending: list[tuple[str, ...]] = [()]  # no recursion: a volume may hold trees of any depth
    while pending:
        parts = pending.pop()
        try:
            with _open_directory(root, parts) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    if other_mounts and str(root.joinpath(*parts, entry.name)) in other_mounts:
                        continue
                    _change_entry(entry.name, descriptor, gid)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((*parts, entry.name))
        except (FileNotFoundError, NotADirectoryError):
            complete = False
    return complete


@contextlib.contextmanager
def _open_directory(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a directory step by step: a program that uses the volume must not redirect this walk with a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    try:
        for part in parts:
            below = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _change_entry(name: str, directory: int, gid: int) -> None:
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return  # removed in the meantime
    try:
        _change_opened(descriptor, gid)
    except PermissionError:
        log.warning("%s keeps its group: it is immutable", Path(f"/proc/self/fd/{descriptor}").readlink())
    finally:
        os.close(descriptor)


def _change_opened(descriptor: int, gid: int) -> None:
    """Change only what is wrong, so that a walk over a tree that is complete writes nothing."""
    status = os.fstat(descriptor)
    itself = f"/proc/self/fd/{descriptor}"  # an O_PATH descriptor allows neither fchown nor fchmod
    if status.st_gid != gid:
        os.chown(itself, -1, gid)  # clears the set-user-id bit; for a link it changes the link itself
    if stat.S_ISLNK(status.st_mode):
        return
    mode = stat.S_IMODE(status.st_mode) | (_DIRECTORY_BITS if stat.S_ISDIR(status.st_mode) else _FILE_BITS)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.chmod(itself, mode)  # noqa: PTH101 - the link is to be followed
