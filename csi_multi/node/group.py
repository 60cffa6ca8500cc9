"""volume_mount_group: give everything on a volume to a group, in a way that can be interrupted."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import InvalidArgument, Unavailable
from ..host import mounts

_DIRECTORY = stat.S_ISGID | 0o070
_FILE = 0o060
MAX = 2**32 - 2


def parse(group: str) -> int | None:
    """Return the numeric id; None when no group is asked for. Raises InvalidArgument."""
    if not group:
        return None
    if not (group.isascii() and group.isdecimal() and len(group) <= 10 and int(group) <= MAX):
        raise InvalidArgument(f"volume_mount_group {group!r} is not a group id; give a number from 0 to {MAX}")
    return int(group)


def give(root: Path, gid: int) -> None:
    """Give the tree to the group. Its root is changed last: it says whether all was done before."""
    try:
        status = root.stat()
        if status.st_gid == gid and status.st_mode & stat.S_ISGID:
            return
        _give_content(root, gid)
        os.chown(root, -1, gid)
        root.chmod(stat.S_IMODE(status.st_mode) | _DIRECTORY)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"giving {root} to group {gid} failed: {reason}; it is done again by the next try") from None


def _give_content(root: Path, gid: int) -> None:
    foreign = {mount.target for mount in mounts.table()}
    waiting: list[tuple[str, ...]] = [()]  # no recursion: a volume may hold trees of any depth
    while waiting:
        parts = waiting.pop()
        with _directory(root, parts) as descriptor, os.scandir(descriptor) as entries:
            for entry in entries:
                if str(root.joinpath(*parts, entry.name)) in foreign:
                    continue
                _give_one(entry.name, descriptor, gid)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((*parts, entry.name))


@contextlib.contextmanager
def _directory(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a directory step by step: a program that uses the volume must not lead us out with a link."""
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


def _give_one(name: str, directory: int, gid: int) -> None:
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return  # removed meanwhile
    try:
        status = os.fstat(descriptor)
        if stat.S_ISLNK(status.st_mode):
            os.chown(name, -1, gid, dir_fd=directory, follow_symlinks=False)
            return
        itself = f"/proc/self/fd/{descriptor}"  # an O_PATH descriptor allows neither fchown nor fchmod
        if status.st_gid != gid:
            os.chown(itself, -1, gid)
        wanted = _DIRECTORY if stat.S_ISDIR(status.st_mode) else _FILE
        os.chmod(itself, stat.S_IMODE(status.st_mode) | wanted)  # noqa: PTH101 - the link is to be followed
    finally:
        os.close(descriptor)
