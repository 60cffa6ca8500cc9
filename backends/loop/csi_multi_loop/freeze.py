"""Hold a mounted filesystem still while its image is copied, and never leave it so.

A marker in <directory>/frozen says so before the freeze: a process that dies with a filesystem
frozen would otherwise hang every program that writes there, for ever. While we hold it frozen its mount
point is kept open, so that nobody unmounts it: a filesystem that is frozen and mounted nowhere keeps
its device busy, and nobody can reach it to thaw it.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_multi.errors import FailedPrecondition, StorageError, Unavailable
from csi_multi.host import CommandFailed, Host, mounts
from csi_multi.host.mounts import MountPoint

from . import devices
from .handles import LEAF_SHAPE
from .metadata import sync

log = logging.getLogger(__name__)

FSFREEZE = "fsfreeze"
ATTEMPTS = 3
NOT_FROZEN = "Invalid argument"  # what FITHAW says of a filesystem that is not frozen
CANNOT_FREEZE = "Operation not supported"


class Freezer:
    def __init__(self, host: Host, markers: Path) -> None:
        self._host = host
        self._markers = markers

    @contextmanager
    def frozen(self, leaf: str, found: list[MountPoint]) -> Iterator[None]:
        """Freeze the filesystem mounted at these places for the block. Raises Unavailable, FailedPrecondition."""
        target = visible(found)
        with _kept_mounted(target), self._frozen(leaf, target):
            yield

    @contextmanager
    def _frozen(self, leaf: str, target: str) -> Iterator[None]:
        marker = self._markers / leaf
        if marker.exists():
            self._thaw(target)
        marker.touch()
        sync(self._markers)
        try:
            self._freeze(target)
        except CommandFailed as error:  # it did not freeze: somebody else may have, and thaws it
            self._unmark(marker)
            if CANNOT_FREEZE in error.stderr:
                raise FailedPrecondition(f"{target} cannot be frozen ({error}); unpublish the volume first") from error
            raise Unavailable(f"{target} could not be frozen for a consistent copy: {error}") from error
        except BaseException:
            self._lift(leaf, target)
            raise
        try:
            yield
        finally:
            self._lift(leaf, target)

    def marked(self) -> list[str]:
        """Return the volumes that somebody has frozen, or meant to."""
        try:
            return sorted(name for name in os.listdir(self._markers) if LEAF_SHAPE.fullmatch(name))
        except FileNotFoundError:
            return []

    def lift(self, leaf: str, attached: list[Path]) -> None:
        """Thaw what an earlier process left, and forget the marker. Not mounted or not frozen is fine."""
        found = [place for device in attached for place in devices.mounted(device)]
        if found:
            self._thaw(visible(found))
        for device in [] if found else attached:
            if devices.in_use(device):
                self._thaw_unmounted(device)
        self._unmark(self._markers / leaf)

    def _lift(self, leaf: str, target: str) -> None:
        self._thaw(target)
        self._unmark(self._markers / leaf)

    def _thaw_unmounted(self, device: Path) -> None:
        """Reach a frozen filesystem that was unmounted, by mounting it once more."""
        with tempfile.TemporaryDirectory(prefix="csi-multi-thaw-") as place:
            self._host.run("mount", str(device), place)
            try:
                self._thaw(place)
            finally:
                self._host.run("umount", place)

    def _freeze(self, target: str) -> None:
        self._host.run(FSFREEZE, "--freeze", target)

    def _thaw(self, target: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._host.run(FSFREEZE, "--unfreeze", target)
            except CommandFailed as error:
                if NOT_FROZEN in error.stderr:
                    return
                log.error("attempt %d to thaw %s failed: %s", attempt, target, error)
            except StorageError as error:
                log.error("attempt %d to thaw %s failed: %s", attempt, target, error)
            else:
                return
            time.sleep(attempt * 0.2)
        raise Unavailable(f"{target} may still be frozen; it is tried again, or run: fsfreeze --unfreeze {target}")

    def _unmark(self, marker: Path) -> None:
        marker.unlink(missing_ok=True)
        sync(self._markers)


def visible(found: list[MountPoint]) -> str:
    """Return a mount point that no later mount covers. Raises Unavailable."""
    table = mounts.table()
    for mount in found:
        if mounts.at(Path(mount.target), table) == mount:
            return mount.target
    raise Unavailable(f"the filesystem of {found[0].source} is covered by other mounts; unmount those first")


@contextmanager
def _kept_mounted(target: str) -> Iterator[None]:
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"{target} was unmounted just now ({error.strerror}); try again") from None
    try:
        yield
    finally:
        os.close(descriptor)
