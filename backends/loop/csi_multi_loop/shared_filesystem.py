"""The directories of other instances on the filesystem of a directory: they share its space, and count together.

Known are the other instances of this process, wherever their directories are mounted, and directories with an owner
beside this one, whichever driver they belong to. Nothing here reaches another filesystem, because that may hang.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from csi_multi.host import mounts
from csi_multi.host.mounts import MountPoint

from . import owner

_lock = threading.Lock()
_filesystems: WeakKeyDictionary[object, tuple[Path, str]] = WeakKeyDictionary()  # of the directories in use


def register(user: object, directory: Path) -> None:
    """Note which filesystem a directory is on, for as long as its user exists."""
    number = mount_of(directory).number
    with _lock:
        _filesystems[user] = (directory, number)


def sharing(directory: Path) -> list[Path]:
    """Return the directories that share the filesystem, this one included, in one order for all processes."""
    table = mounts.table()
    mount = mount_of(directory, table)
    with _lock:
        known = list(_filesystems.values())
    found = {directory, *(path for path, number in known if number == mount.number)}
    real = Path(os.path.realpath(directory))
    if str(real) != mount.target:
        found |= _owned_beside(real, {one.target for one in table})
    by_inode = {}
    for path in sorted(found):
        with suppress(FileNotFoundError, NotADirectoryError):
            by_inode[path.stat().st_ino] = path
    return [by_inode[inode] for inode in sorted(by_inode)]


def mount_of(path: Path, table: list[MountPoint] | None = None) -> MountPoint:
    """Return the mount that a path is on, or would be on."""
    real = os.path.realpath(path)
    above = [one for one in table or mounts.table() if f"{real}/".startswith(f"{one.target.rstrip('/')}/")]
    return max(enumerate(above), key=lambda pair: (len(pair[1].target), pair[0]))[1]


def _owned_beside(directory: Path, mounted: set[str]) -> set[Path]:
    found = set()
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(directory.parent) as entries:
        for entry in entries:
            if entry.path in mounted:
                continue  # another filesystem
            with suppress(PermissionError):
                if entry.is_dir(follow_symlinks=False) and Path(entry.path, owner.FILE).exists():
                    found.add(Path(entry.path))
    return found
