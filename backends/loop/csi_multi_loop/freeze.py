"""Hold a mounted filesystem still while its image is copied, and never leave it so.

A marker in <directory>/frozen says so before the freeze: a process that dies with a filesystem
frozen would otherwise hang every program that writes there, for ever. While we hold it frozen its
mount point is kept open, so that nobody unmounts it: a filesystem that is frozen and mounted nowhere
keeps its device busy, and nobody can reach it to thaw it.

The kernel is asked directly, on a descriptor that was checked: a command could outlive us, or find
another filesystem at the path by the time it looks, and freeze that.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_multi.contract import LEAF_SHAPE, FailedPrecondition, Host, Unavailable
from csi_multi.host import loopfile, mounts
from csi_multi.host.mounts import MountPoint

from .metadata import sync

log = logging.getLogger(__name__)

FIFREEZE = 0xC0045877
FITHAW = 0xC0045878
ATTEMPTS = 3


class Gate:
    """The kernel's two calls, on an open directory of the filesystem. They raise OSError."""

    def freeze(self, descriptor: int) -> None:
        fcntl.ioctl(descriptor, FIFREEZE, 0)

    def thaw(self, descriptor: int) -> None:
        fcntl.ioctl(descriptor, FITHAW, 0)


class Freezer:
    """Freezes and thaws filesystems, with a marker per volume."""

    def __init__(self, host: Host, markers: Path, gate: Gate | None = None) -> None:
        self._host = host
        self._markers = markers
        self.gate = gate or Gate()

    @contextmanager
    def frozen(self, leaf: str, found: list[MountPoint]) -> Iterator[None]:
        """Freeze the filesystem mounted at these places for the block. Raises Unavailable, FailedPrecondition."""
        place = visible(found)
        with _opened(place) as descriptor:
            marker = self._markers / leaf
            if marker.exists():
                self._thaw(descriptor, place.target)
            marker.touch()
            sync(self._markers)
            self._freeze(descriptor, marker, place.target)
            try:
                yield
            finally:
                self._thaw(descriptor, place.target)
                self._unmark(marker)

    def marked(self) -> list[str]:
        """Return the volumes that somebody has frozen, or meant to."""
        try:
            return sorted(name for name in os.listdir(self._markers) if LEAF_SHAPE.fullmatch(name))
        except FileNotFoundError:
            return []

    def lift(self, leaf: str, attached: list[Path]) -> None:
        """Thaw what an earlier process left, and forget the marker. Not mounted or not frozen is fine."""
        found = [place for device in attached for place in loopfile.mounted(device)]
        if found:
            with _opened(visible(found)) as descriptor:
                self._thaw(descriptor, found[0].target)
        for device in [] if found else attached:
            if loopfile.in_use(device):
                self._thaw_unmounted(device)
        self._unmark(self._markers / leaf)

    def _freeze(self, descriptor: int, marker: Path, target: str) -> None:
        try:
            self.gate.freeze(descriptor)
        except OSError as error:  # it did not freeze: somebody else may have, and thaws it
            self._unmark(marker)
            if error.errno == errno.EOPNOTSUPP:
                raise FailedPrecondition(f"{target} cannot be frozen; unpublish the volume first") from error
            raise Unavailable(
                f"{target} could not be frozen for a consistent copy: {error.strerror}; if another program froze it, "
                f"it must thaw it: fsfreeze --unfreeze {target}"
            ) from error

    def _thaw(self, descriptor: int, target: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.gate.thaw(descriptor)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return  # it was not frozen
                log.error("attempt %d to thaw %s failed: %s", attempt, target, error)
            else:
                return
            time.sleep(attempt * 0.2)
        raise Unavailable(f"{target} may still be frozen; it is tried again, or run: fsfreeze --unfreeze {target}")

    def _thaw_unmounted(self, device: Path) -> None:
        """Reach a frozen filesystem that was unmounted, by mounting it once more."""
        with tempfile.TemporaryDirectory(prefix="csi-multi-thaw-") as path:
            self._host.run("mount", str(device), path)
            try:
                if place := mounts.at(Path(path)):
                    with _opened(place) as descriptor:
                        self._thaw(descriptor, path)
            finally:
                self._host.run("umount", path)

    def _unmark(self, marker: Path) -> None:
        marker.unlink(missing_ok=True)
        sync(self._markers)


def visible(found: list[MountPoint]) -> MountPoint:
    """Return a mount that no later mount covers. Raises Unavailable."""
    table = mounts.table()
    for mount in found:
        if mounts.at(Path(mount.target), table) == mount:
            return mount
    raise Unavailable(f"the filesystem of {found[0].source} is covered by other mounts; unmount those first")


@contextmanager
def _opened(place: MountPoint) -> Iterator[int]:
    """A descriptor of this very mount. Raises Unavailable when something else is found at its path."""
    gone = Unavailable(f"{place.target} was unmounted just now; try again")
    try:
        descriptor = os.open(place.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise gone from None
    try:
        if mounts.id_of(descriptor) != place.id:
            raise gone
        yield descriptor
    finally:
        os.close(descriptor)
