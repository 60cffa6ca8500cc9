"""volume_mount_group: give everything on a volume to a group, in a way that can be interrupted."""

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

_DIRECTORY = stat.S_ISGID | 0o070
_FILE = 0o060
MAX = 2**32 - 2
_PASSES = 3  # over a tree that changes meanwhile


def parse(group: str) -> int | None:
    """Return the numeric id; None when no group is asked for. Raises InvalidArgument."""
    if not group:
        return None
    if not (group.isascii() and group.isdecimal() and len(group) <= 10 and int(group) <= MAX):
        raise InvalidArgument(f"volume_mount_group {group!r} is not a group id; give a number from 0 to {MAX}")
    return int(group)


def give(root: Path, gid: int) -> None:
    """Give the tree to the group, unless its root says that all was done before.

    The root loses its set-group-id bit first and gets it back last: after an interrupted walk no group,
    the former one neither, takes the tree for its own.
    """
    try:
        status = root.stat()
        if status.st_mode & stat.S_ISGID:
            if status.st_gid == gid:
                return
            root.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_ISGID)
        for _ in range(_PASSES):
            if _give_content(root, gid):
                break
        os.chown(root, -1, gid)
        root.chmod(stat.S_IMODE(root.stat().st_mode) | _DIRECTORY)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"giving {root} to group {gid} failed: {reason}; it is done again by the next try") from None


def _give_content(root: Path, gid: int) -> bool:
    """Return False when a directory was gone before its turn: removed, or moved to where we may have been already."""
    foreign = {mount.target for mount in mounts.table() if mount.target.startswith(f"{root}/")}
    complete = True
    waiting: list[tuple[str, ...]] = [()]  # no recursion: a volume may hold trees of any depth
    while waiting:
        parts = waiting.pop()
        try:
            with _directory(root, parts) as descriptor, os.scandir(descriptor) as entries:
                for entry in entries:
                    if foreign and str(root.joinpath(*parts, entry.name)) in foreign:
                        continue
                    _give_one(entry.name, descriptor, gid)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((*parts, entry.name))
        except (FileNotFoundError, NotADirectoryError):
            complete = False
    return complete


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
        _give_opened(descriptor, gid)
    except PermissionError:
        log.warning("%s keeps its group: it is immutable", Path(f"/proc/self/fd/{descriptor}").readlink())
    finally:
        os.close(descriptor)


def _give_opened(descriptor: int, gid: int) -> None:
    """Change what is wrong and nothing else, so that a walk over what is done already writes nothing."""
    status = os.fstat(descriptor)
    itself = f"/proc/self/fd/{descriptor}"  # an O_PATH descriptor allows neither fchown nor fchmod
    if status.st_gid != gid:
        os.chown(itself, -1, gid)  # takes the set-user-id bit away; of a link, too, it changes the link itself
    if stat.S_ISLNK(status.st_mode):
        return
    mode = stat.S_IMODE(status.st_mode) | (_DIRECTORY if stat.S_ISDIR(status.st_mode) else _FILE)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
        os.chmod(itself, mode)  # noqa: PTH101 - the link is to be followed
