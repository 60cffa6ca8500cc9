"""Freeze a mounted filesystem while its image is copied, and never leave it frozen.

Before the freeze a marker is written to <directory>/frozen: if the process dies, every program that writes to the
frozen filesystem would otherwise hang for ever. The mount point is kept open during the freeze, so that it cannot be
unmounted: a filesystem that is frozen and mounted nowhere keeps its device busy, and cannot be reached to thaw it.

The kernel is called directly, on a descriptor that was checked. A command could outlive this process, or find
another filesystem at the path by the time it starts, and freeze that.
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

from csi_multi.contract import LEAF_SHAPE, CommandFailed, FailedPrecondition, Host, Unavailable
from csi_multi.host import loopfile, mounts
from csi_multi.host.mounts import MountPoint

from .client import sync_path

log = logging.getLogger(__name__)

FIFREEZE = 0xC0045877
FITHAW = 0xC0045878
ATTEMPTS = 3


class FreezeCalls:
    """The kernel's two calls, on an open directory of the filesystem. They raise OSError."""

    def freeze(self, descriptor: int) -> None:
        fcntl.ioctl(descriptor, FIFREEZE, 0)

    def thaw(self, descriptor: int) -> None:
        fcntl.ioctl(descriptor, FITHAW, 0)


class Freezer:
    """Freezes and thaws filesystems, with a marker per volume."""

    def __init__(self, host: Host, markers: Path, calls: FreezeCalls | None = None) -> None:
        self._host = host
        self._markers = markers
        self.calls = calls or FreezeCalls()

    @contextmanager
    def frozen(self, leaf: str, mounted: list[MountPoint]) -> Iterator[None]:
        """Freeze the filesystem of these mounts for the block. Raises Unavailable, FailedPrecondition."""
        mount = uncovered(mounted)
        with _opened(mount) as descriptor:
            marker = self._markers / leaf
            if marker.exists():
                self._thaw(descriptor, mount.target)
            marker.touch()
            sync_path(self._markers)
            self._freeze(descriptor, marker, mount.target)
            try:
                yield
            finally:
                self._thaw(descriptor, mount.target)
                self._remove_marker(marker)

    def marked(self) -> list[str]:
        """Return the volumes that some process has frozen, or was about to freeze."""
        try:
            return sorted(name for name in os.listdir(self._markers) if LEAF_SHAPE.fullmatch(name))
        except FileNotFoundError:
            return []

    def thaw_leftover(self, leaf: str, devices: list[Path]) -> None:
        """Thaw what an earlier process left frozen, if it did, and remove the marker."""
        mounted = [mount for device in devices for mount in loopfile.mounted(device)]
        if mounted:
            with _opened(uncovered(mounted)) as descriptor:
                self._thaw(descriptor, mounted[0].target)
        for device in [] if mounted else devices:
            if loopfile.in_use(device):
                self._thaw_unmounted(device)
        self._remove_marker(self._markers / leaf)

    def _freeze(self, descriptor: int, marker: Path, target: str) -> None:
        try:
            self.calls.freeze(descriptor)
        except OSError as error:  # nothing was frozen here: if it is frozen, who froze it must thaw it
            self._remove_marker(marker)
            if error.errno == errno.EOPNOTSUPP:
                raise FailedPrecondition(
                    f"{target} cannot be frozen for a consistent copy: its filesystem does not support that; "
                    "unpublish the volume first"
                ) from error
            raise Unavailable(
                f"{target} could not be frozen for a consistent copy: {error.strerror}; if another program froze it, "
                f"thaw it with: fsfreeze --unfreeze {target}"
            ) from error

    def _thaw(self, descriptor: int, target: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.calls.thaw(descriptor)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return  # it was not frozen
                log.error("attempt %d to thaw %s failed: %s", attempt, target, error)
            else:
                return
            time.sleep(attempt * 0.2)
        raise Unavailable(
            f"{target} may still be frozen: {ATTEMPTS} attempts to thaw it failed; "
            f"the driver tries again, or run: fsfreeze --unfreeze {target}"
        )

    def _thaw_unmounted(self, device: Path) -> None:
        """Reach a frozen filesystem that was unmounted, by mounting it once more."""
        with tempfile.TemporaryDirectory(prefix="csi-multi-thaw-") as path:
            self._mount(device, path)
            try:
                if mount := mounts.at(Path(path)):
                    with _opened(mount) as descriptor:
                        self._thaw(descriptor, path)
            finally:
                self._host.run("umount", path)

    def _mount(self, device: Path, path: str) -> None:
        """Mount what a tenant wrote so that it has no effect on the node, as one of the filesystems there are."""
        command = ("mount", "--options", "nosuid,nodev,noexec", "--types")
        try:  # a superblock of ext4 may say errors=panic
            self._host.run(*command, "ext4", "--options", "errors=remount-ro", str(device), path)
        except CommandFailed:
            self._host.run(*command, "xfs,btrfs", str(device), path)

    def _remove_marker(self, marker: Path) -> None:
        marker.unlink(missing_ok=True)
        sync_path(self._markers)


def uncovered(mounted: list[MountPoint]) -> MountPoint:
    """Return a mount that no later mount covers. Raises Unavailable."""
    table = mounts.table()
    for mount in mounted:
        if mounts.at(Path(mount.target), table) == mount:
            return mount
    raise Unavailable(f"the filesystem of {mounted[0].source} is covered by other mounts; unmount those first")


@contextmanager
def _opened(mount: MountPoint) -> Iterator[int]:
    """Yield a descriptor of this very mount. Raises Unavailable when something else is found at its path."""
    unmounted = Unavailable(f"{mount.target} was unmounted just now; try again")
    try:
        descriptor = os.open(mount.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise unmounted from None
    try:
        if mounts.id_of(descriptor) != mount.id:
            raise unmounted
        yield descriptor
    finally:
        os.close(descriptor)
