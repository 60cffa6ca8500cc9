"""volume_mount_group: makes everything on a volume accessible to a group, safely when interrupted."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import FailedPrecondition, InvalidArgument, Unavailable
from ..host import mounts
from ..host.mounts import MountPoint
from . import stalled_writes

log = logging.getLogger(__name__)

_DIRECTORY_BITS = stat.S_ISGID | 0o070
_FILE_BITS = 0o060
MAX_GROUP_ID = 2**32 - 2
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GET_FLAGS = 0x80086601  # linux/fs.h: FS_IOC_GETFLAGS
_UNCHANGEABLE = 0x10 | 0x20  # FS_IMMUTABLE_FL, FS_APPEND_FL: the kernel refuses chown and chmod
_PASSES = 3  # at most, over a tree that changes at the same time


def parse(group: str) -> int | None:
    """Return the numeric id; None when no group is requested. Raises InvalidArgument."""
    if not group:
        return None
    if not (group.isascii() and group.isdecimal() and len(group) <= 10 and int(group) <= MAX_GROUP_ID):
        raise InvalidArgument(f"volume_mount_group {group!r} is not a group id; use a number from 0 to {MAX_GROUP_ID}")
    return int(group)


def apply(mounted: MountPoint, gid: int) -> None:
    """Change group and permissions of a mounted tree, unless its root shows that this is complete.

    The root loses its set-group-id bit first and gets it back last. So an interrupted chgrp is never treated as
    complete, neither for the new group nor for the former one. Raises Unavailable, and FailedPrecondition for a root
    that is immutable or append-only.
    """
    root = Path(mounted.target)
    progress = _Progress()
    what = f"changing the group of {root} to {gid}"
    try:
        status = root.stat()
        if status.st_mode & stat.S_ISGID and status.st_gid == gid:
            return
        stalled_writes.write(mounted, what, lambda opened: _change_all(mounted, opened, gid, progress), progress.count)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"{what} failed: {reason}; the next try repeats it") from None
    finally:
        progress.wanted = False


@dataclass(slots=True)
class _Progress:
    """How far the changes are. One that hangs is the last one, also if it ends some time."""

    steps: int = 0
    wanted: bool = True

    def count(self) -> int:
        return self.steps

    def step(self) -> None:
        """Raise TimeoutError when nobody waits for the changes any more."""
        if not self.wanted:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        self.steps += 1


def _change_all(mounted: MountPoint, opened: int, gid: int, progress: _Progress) -> None:
    root = f"/proc/self/fd/{opened}/."
    if _is_unchangeable(root):
        raise FailedPrecondition(
            f"{mounted.target} is immutable or append-only, so its group cannot be changed to {gid}; use the volume "
            "without a group (fsGroup), and run chattr -i -a on its root directory"
        )
    if (mode := stat.S_IMODE(os.stat(root).st_mode)) & stat.S_ISGID:  # noqa: PTH116
        os.chmod(root, mode & ~stat.S_ISGID)  # noqa: PTH101
    inside = any(one.target.startswith(f"{mounted.target}/") for one in mounts.table())
    for _ in range(_PASSES):
        if _change_tree(root, gid, progress, mounted.id if inside else None):
            break
    progress.step()
    os.chown(root, -1, gid)
    progress.step()
    os.chmod(root, stat.S_IMODE(os.stat(root).st_mode) | _DIRECTORY_BITS)  # noqa: PTH101, PTH116


def _is_unchangeable(root: str) -> bool:
    flags = bytes(8)  # the size of a long, of which the kernel writes an int
    descriptor = os.open(root, _OPEN)
    try:
        with contextlib.suppress(OSError):  # a filesystem without such flags
            flags = fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    finally:
        os.close(descriptor)
    return bool(struct.unpack_from("i", flags)[0] & _UNCHANGEABLE)


@dataclass(slots=True)
class _Directory:
    """A directory on the way from the root to where the walk is."""

    name: str
    identity: tuple[int, int]  # st_dev, st_ino
    pending: list[str]  # subdirectories that were not visited yet


class _Walk:
    """A walk over a tree of any depth with one open directory: no recursion, no path, and no link is followed."""

    def __init__(self, root: str, gid: int, progress: _Progress, mount_id: int | None) -> None:
        self._root = root
        self._gid = gid
        self._progress = progress
        self.complete = True  # False: a directory vanished before it was reached, perhaps to a place visited before
        self._here = os.open(root, _OPEN)
        self._mount_id = mount_id  # None: nothing is mounted inside
        self._way: list[_Directory] = []

    def run(self) -> None:
        """Change everything below the root, each directory's entries before those of its subdirectories."""
        try:
            self._enter("")
            while self._way:
                if self._way[-1].pending:
                    self._descend(self._way[-1].pending.pop())
                else:
                    self._way.pop()
                    self._ascend()
        finally:
            os.close(self._here)

    def _enter(self, name: str) -> None:
        self._way.append(_Directory(name, _identity(self._here), pending := []))
        with os.scandir(self._here) as entries:
            for entry in entries:
                self._progress.step()
                if self._mount_id is not None and self._is_mount(entry.name):
                    continue
                _change_entry(entry.name, self._here, self._gid)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.name)

    def _descend(self, name: str) -> None:
        try:
            below = os.open(name, _OPEN, dir_fd=self._here)
        except (FileNotFoundError, NotADirectoryError):
            self.complete = False
            return
        self._move(below)
        self._enter(name)

    def _ascend(self) -> None:
        """Return to the last directory of the way, or to the next one above it that still is where it was."""
        while self._way:
            for way_there in (self._open_parent, self._open_from_root):
                try:
                    above = way_there()
                except (FileNotFoundError, NotADirectoryError):
                    continue
                if _identity(above) == self._way[-1].identity:
                    self._move(above)
                    return
                os.close(above)
                self.complete = False  # a directory was moved while the walk was in it
            self.complete = False
            self._way.pop()

    def _open_parent(self) -> int:
        return os.open("..", _OPEN, dir_fd=self._here)

    def _open_from_root(self) -> int:
        descriptor = os.open(self._root, _OPEN)
        for directory in self._way[1:]:
            try:
                below = os.open(directory.name, _OPEN, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = below
        return descriptor

    def _move(self, descriptor: int) -> None:
        os.close(self._here)
        self._here = descriptor
        self._progress.step()

    def _is_mount(self, name: str) -> bool:
        """Whether another filesystem is mounted here."""
        try:
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._here)
        except FileNotFoundError:
            return False
        try:
            return mounts.id_of(descriptor) != self._mount_id
        finally:
            os.close(descriptor)


def _change_tree(root: str, gid: int, progress: _Progress, mount_id: int | None) -> bool:
    """Return False when a directory vanished before it was reached."""
    walk = _Walk(root, gid, progress, mount_id)
    walk.run()
    return walk.complete


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _change_entry(name: str, directory: int, gid: int) -> None:
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return  # removed in the meantime
    try:
        _change_opened(descriptor, gid)
    except PermissionError:
        log.warning(
            "%s keeps its group: it is immutable or append-only", Path(f"/proc/self/fd/{descriptor}").readlink()
        )
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
