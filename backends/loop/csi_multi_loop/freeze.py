"""Hold a mounted filesystem still while its image is copied, and never leave it so.

A marker in <directory>/frozen says so before the freeze: a process that dies with a filesystem
frozen would otherwise hang every program that writes there, for ever.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_multi.errors import FailedPrecondition, StorageError, Unavailable
from csi_multi.host import CommandFailed, Host, mounts
from csi_multi.host.mounts import MountPoint

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
            self.lift(marker.name, found)
            raise
        try:
            yield
        finally:
            self.lift(marker.name, found)

    def marked(self) -> list[str]:
        """Return the volumes that somebody has frozen, or meant to."""
        try:
            return sorted(name for name in os.listdir(self._markers) if LEAF_SHAPE.fullmatch(name))
        except FileNotFoundError:
            return []

    def lift(self, leaf: str, found: list[MountPoint]) -> None:
        """Thaw, and forget the marker once that is done. Not mounted or not frozen is fine."""
        if found:
            self._thaw(visible(found))
        self._unmark(self._markers / leaf)

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
