"""The directory of an instance: whether it is mounted and writable, how full it is, what its disk needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from csi_multi.contract import Setting, Unavailable
from csi_multi.host import mounts, sysfs

from . import owner, shared_filesystem
from .changes import Changes
from .client import Client
from .config import Config
from .directory_notes import DirectoryNotes, OpenDirectory

VOLUMES = "volumes"
SNAPSHOTS = "snapshots"
SMALLEST_SECTOR = 512  # bytes: fits any filesystem
LARGEST_SECTOR = 4096  # bytes: direct I/O in these units works on any disk and filesystem
LOCK_SECONDS = 10.0  # for which an operation waits for others that count the free space, of milliseconds each


class Directory:
    def __init__(self, config: Config, setting: Setting, client: Client) -> None:
        self.path = Path(config.directory)
        self._config = config
        self._client = client
        self._owner = owner.owner_of(setting)
        self._token = ""  # of the directory that this process has seen
        self._notes = DirectoryNotes(self.path, client)
        self.changes = Changes()

    def prepare(self) -> None:
        """Create the directory and its own subdirectories on first use. Raises what require_ready raises."""
        self.require_ready()
        if not self._token:
            self._client.create_directory(self.path)
            with self.lock():
                if self._owner_record() is None:
                    self._client.write_owner(self.path / owner.FILE, owner.new_record(self._owner))
            self.require_ready()
        if self._token:
            shared_filesystem.register(self, self.path)
        for name in (VOLUMES, SNAPSHOTS):
            self._client.create_directory(self.path / name)

    def require_ready(self) -> None:
        """Raise Unavailable unless this is the owner's directory, and the one that this process has seen before.

        Whoever does not find something in the directory must call this before it says that it does not exist.
        """
        self.require_mount()
        data = self._owner_record()
        if data is None and not self._token:
            return  # before the first use
        token = "" if data is None else owner.token_of(self.path, data, self._owner)
        if self._token not in ("", token):
            raise Unavailable(
                f"{self.path} is not the directory that this driver has used so far: its {owner.FILE} is missing or "
                "another; mount its disk again, or restart the driver to use what is there now"
            )
        self._token = token

    def _owner_record(self) -> bytes | None:
        """Return the contents of the owner file, None where there is none."""
        try:
            return self._client.read(self.path / owner.FILE)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def require_mount(self) -> None:
        """Raise Unavailable when require_mount is set and no filesystem of its own is mounted there."""
        if not self._config.require_mount:
            return
        mount = mounts.at(Path(os.path.realpath(self.path)))
        # In a container the host's directory is always a mount point. The mount's root shows whether it is
        # the top of a filesystem, or only a directory of the filesystem that should be covered.
        if mount is None or (mount.root != "/" and mount.fs_type != "btrfs"):
            raise Unavailable(
                f"{self.path} is not a mount point of its own, which require_mount demands; "
                "mount its disk, or unset require_mount"
            )

    def lock(self) -> AbstractContextManager[None]:
        """Wait for other operations that count the free space, and lock them out for the block.

        Raises Unavailable when one of them, in whatever process, does not end.
        """
        return self._locked((self.path, partial(self._client.lock, self.path)))

    @contextmanager
    def lock_filesystem(self) -> Iterator[list[OpenDirectory]]:
        """As lock(), for all directories that share the filesystem; yield them."""
        self.share()  # before it is known what others do: of two at once, one at least finds the other
        with self.sharing() as directories:
            locks = [(one.path, partial(self._client.lock_open, one.descriptor)) for one in directories]
            with self._locked(*locks):
                yield directories

    @contextmanager
    def _locked(self, *locks: tuple[Path, Callable[..., AbstractContextManager[None]]]) -> Iterator[None]:
        until = time.monotonic() + LOCK_SECONDS
        with ExitStack() as stack:
            for directory, lock in locks:
                try:
                    stack.enter_context(lock(wait=until - time.monotonic()))
                except BlockingIOError:
                    raise Unavailable(
                        f"{directory} has been locked by another operation for {LOCK_SECONDS:g} seconds; try again, "
                        f"or, if this goes on, end the process that hangs ('fuser -v {directory}' names it)"
                    ) from None
            yield

    def sharing(self) -> AbstractContextManager[list[OpenDirectory]]:
        """Open the directories on this filesystem, of this and of other instances and drivers."""
        return shared_filesystem.sharing(self.path, self._notes)

    def share(self) -> None:
        """Let the other drivers of the node find the directory, and remember theirs."""
        if self._token and (missing := self._notes.missing(self._token)):
            with self.lock():
                self._notes.write(missing)

    def check(self) -> None:
        """Raise Unavailable when nothing can be stored here now."""
        self.prepare()
        if self.read_only():
            raise Unavailable(
                f"the filesystem of {self.path} is read-only; check the kernel log, and mount it writable again"
            )
        if not os.access(self.path / VOLUMES, os.W_OK | os.X_OK):
            raise Unavailable(f"{self.path} is not writable; run the driver as root")

    def read_only(self) -> bool:
        return bool(os.statvfs(self.path).f_flag & os.ST_RDONLY)

    def free(self) -> tuple[int, int]:
        """Return the free bytes, and how many bytes the reserve keeps free."""
        status = os.statvfs(self.existing)
        share = status.f_blocks * status.f_frsize * self._config.reserve_percent // 100
        return status.f_bavail * status.f_frsize, max(share, self._config.reserve_bytes)

    @property
    def existing(self) -> Path:
        """The path from which facts about the disk below are read."""
        return self.path

    def fullness(self) -> float:
        """Return how full the filesystem is, 0 to 1, as df computes it."""
        status = os.statvfs(self.path)
        used = status.f_blocks - status.f_bfree
        return used / (used + status.f_bavail) if used + status.f_bavail else 1.0

    def sector_size(self) -> int:
        """Return the sector size that direct I/O on the directory's disk needs."""
        size = sysfs.sector_size(sysfs.format_number(self.existing.stat().st_dev))
        return max(SMALLEST_SECTOR, size) if size else LARGEST_SECTOR  # btrfs and others that have no single disk
