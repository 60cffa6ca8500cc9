"""The directories of other instances on the filesystem of a directory: they share its space, and count together.

Known are the other instances of this process, wherever their directories are mounted, directories with an owner beside
this one, whichever driver they belong to, and those that other drivers of the node have noted (directory_notes.py).
Nothing here reaches another filesystem, because that may hang.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from csi_multi.host import mounts
from csi_multi.host.mounts import MountPoint

from . import owner
from .client import DIRECTORY_FLAGS
from .directory_notes import DirectoryNotes, OpenDirectory

_lock = threading.Lock()
_filesystems: WeakKeyDictionary[object, tuple[Path, str]] = WeakKeyDictionary()  # of the directories in use


def register(user: object, directory: Path) -> None:
    """Note which filesystem a directory is on, for as long as its user exists."""
    number = mount_of(directory).number
    with _lock:
        _filesystems[user] = (directory, number)


@contextmanager
def sharing(directory: Path, notes: DirectoryNotes) -> Iterator[list[OpenDirectory]]:
    """Open the directories that share the filesystem, this one included, in one order for all processes."""
    found: dict[tuple[int, int], OpenDirectory] = {}
    with ExitStack() as stack:

        def add(one: OpenDirectory) -> None:
            stack.callback(os.close, one.descriptor)
            status = os.fstat(one.descriptor)
            found.setdefault((status.st_dev, status.st_ino), one)

        for path in (directory, *sorted(_visible(directory) - {directory})):
            with suppress(FileNotFoundError, NotADirectoryError):
                add(OpenDirectory(os.open(path, DIRECTORY_FLAGS), path))
        visible = [one.descriptor for one in found.values()]
        if any(one.path == directory for one in found.values()):  # otherwise it is not created yet
            for one in notes.open_others(visible[0], visible):
                add(one)
        yield [found[key] for key in sorted(found)]


def mount_of(path: Path, table: list[MountPoint] | None = None) -> MountPoint:
    """Return the mount that a path is on, or would be on."""
    real = os.path.realpath(path)
    above = [one for one in table or mounts.table() if f"{real}/".startswith(f"{one.target.rstrip('/')}/")]
    return max(enumerate(above), key=lambda pair: (len(pair[1].target), pair[0]))[1]


def _visible(directory: Path) -> set[Path]:
    """Return the directories on the filesystem that this process knows by their paths."""
    table = mounts.table()
    mount = mount_of(directory, table)
    with _lock:
        found = {path for path, number in _filesystems.values() if number == mount.number}
    real = Path(os.path.realpath(directory))
    if str(real) != mount.target:
        found |= _owned_beside(real, {one.target for one in table})
    return found


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
