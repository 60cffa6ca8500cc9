"""The directory an instance lives in: is it there, is it the right one, how full is it."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from csi_multi.contract import Unavailable
from csi_multi.host import mounts, sysfs

from .config import Config
from .files import Files

VOLUMES = "volumes"
SNAPSHOTS = "snapshots"
FROZEN = "frozen"
BLOCKS = 4096  # bytes of the units in which direct I/O works on any disk and filesystem


class Place:
    def __init__(self, config: Config, files: Files | None = None) -> None:
        self.directory = Path(config.directory)
        self._config = config
        self._files = files or Files()

    def prepare(self) -> None:
        """Make the directory ready for work. Raises Unavailable when the disk below is missing."""
        self.guard()
        for name in (VOLUMES, SNAPSHOTS, FROZEN):
            self._files.prepare(self.directory / name)

    def guard(self) -> None:
        """Raise Unavailable when require_mount is set and no filesystem of its own is mounted there."""
        if not self._config.require_mount:
            return
        mount = mounts.at(Path(os.path.realpath(self.directory)))
        # A container sees its host's directory as a mount point always; the mount's root tells
        # whether it is a filesystem's top, or only a directory of the one that should be covered.
        if mount is None or (mount.root != "/" and mount.fs_type != "btrfs"):
            raise Unavailable(
                f"{self.directory} is not a mount point of its own, as require_mount asks; "
                "mount its disk, or unset require_mount"
            )

    def alone(self) -> AbstractContextManager[None]:
        """Wait for others that count the space, and keep them away."""
        return self._files.held(self.directory, wait=True)

    def check(self) -> None:
        """Raise Unavailable when nothing can be stored here now."""
        self.prepare()
        if self.read_only():
            raise Unavailable(f"the filesystem of {self.directory} is read-only; check the kernel log")
        if not os.access(self.directory / VOLUMES, os.W_OK | os.X_OK):
            raise Unavailable(f"{self.directory} is not writable; the driver needs to be root")

    def read_only(self) -> bool:
        return bool(os.statvfs(self.directory).f_flag & os.ST_RDONLY)

    def free(self) -> tuple[int, int]:
        """Return the bytes free, and how many of them are to stay so."""
        found = os.statvfs(self.existing)
        share = found.f_blocks * found.f_frsize * self._config.reserve_percent // 100
        return found.f_bavail * found.f_frsize, max(share, self._config.reserve_bytes)

    @property
    def existing(self) -> Path:
        """What is asked about the disk below."""
        return self.directory

    def filled(self) -> float:
        """Return how full the filesystem is, 0 to 1, as df counts."""
        found = os.statvfs(self.directory)
        used = found.f_blocks - found.f_bfree
        return used / (used + found.f_bavail) if used + found.f_bavail else 1.0

    def sector_size(self) -> int:
        """Return the sector size that direct I/O on the directory's disk needs."""
        device = self.existing.stat().st_dev
        number = sysfs.format_number(device)
        for name in ("queue/logical_block_size", "../queue/logical_block_size"):  # a disk, a partition
            if found := sysfs.attribute(number, name):
                return max(512, int(found))
        return BLOCKS  # btrfs and others without one disk of their own
