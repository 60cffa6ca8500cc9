"""The mounted filesystems of a device, and of the devices above it, each through one mount that can be opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import Unavailable
from ..host import loopfile, mounts
from ..host.mounts import MountPoint


def find(device: Path) -> list[MountPoint]:
    """Return one mount of each filesystem, which no other mount covers. Raises Unavailable."""
    found: dict[str, list[MountPoint]] = {}
    try:
        for mount in loopfile.mounted(device):
            found.setdefault(mounts.filesystem_number(mount), []).append(mount)
        return [_uncovered(mounted) for mounted in found.values()]
    except OSError as error:
        raise Unavailable(f"cannot find out what is mounted from {device}: {error.strerror}; try again") from error


def _uncovered(mounted: list[MountPoint]) -> MountPoint:
    table = mounts.table()
    for mount in mounted:
        if mounts.at(Path(mount.target), table) == mount:
            return mount
    raise Unavailable(f"the filesystem of {mounted[0].source} is covered by other mounts; unmount those first")


@contextlib.contextmanager
def opened(mount: MountPoint) -> Iterator[int]:
    """Yield a descriptor of this very mount. Raises Unavailable when something else is found at its path."""
    try:
        descriptor = os.open(mount.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"{mount.target} cannot be opened: {error.strerror}; try again") from None
    try:
        if mounts.id_of(descriptor) != mount.id:
            raise Unavailable(f"{mount.target} was unmounted just now; try again")
        yield descriptor
    finally:
        os.close(descriptor)
