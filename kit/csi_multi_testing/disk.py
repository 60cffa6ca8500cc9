"""A filesystem of its own for a backend that keeps files: it can be unmounted, and its power can be cut. Needs root.

The filesystem is in a file, the disk, behind a loop device. What the filesystem has not written to the disk yet is lost
by a power cut: the files of a backend that does not fsync. ext4 is mounted so that it writes nothing early by itself.
A power cut finds what was not synced at all. On ext4 it does not find what the fsync of another file made durable too,
because that writes the whole journal; on btrfs it does. The kernel may write at any time (short of memory, `sync`):
then a power cut finds less, and it is never wrong about what it finds.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

from csi_multi.contract import Host, InUse, Unavailable
from csi_multi.host import loopdev, mounts
from csi_multi.host.bounded import ask
from csi_multi.host.command import LocalHost

from .assertions import CheckFailed, expect
from .occupied_space import occupied_by_a_file
from .storage import MIB

SIZE = 512 * MIB  # of the filesystem; the file is sparse
COPIES = 10  # of a disk that is written meanwhile
# ext4 would commit its journal every 5 seconds, and write a file when it is renamed over another.
OPTIONS = {"ext4": "commit=86400,noauto_da_alloc"}
EAGER = {"ext4": ("-E", "lazy_itable_init=0,lazy_journal_init=1")}  # no thread of the kernel initialises it later


class Disk:
    """`with Disk(directory) as disk`: `disk.path` is the mount point; `away`, `occupy` and `power_cut` are for Storage.

    `directory` gets the file and the mount point. `kind` is a filesystem whose mkfs and mount are installed.
    """

    def __init__(self, directory: Path, *, size: int = SIZE, kind: str = "ext4", host: Host | None = None) -> None:
        self.path = directory / "mounted"
        self._kind = kind
        self._host = host or LocalHost()
        self._files = (directory / f"disk-{number}" for number in itertools.count())
        self._size = size
        self._file = next(self._files)
        self._device = ""
        self._numbers: set[int] = set()  # st_dev of the filesystem, each time it was mounted
        self._plugged = ExitStack()
        self._made = ExitStack()

    def __enter__(self) -> Disk:
        with ExitStack() as made:
            self.path.mkdir(parents=True)
            made.callback(self.path.rmdir)
            with self._file.open("wb") as file:
                made.callback(self._file.unlink, missing_ok=True)
                file.truncate(self._size)
            self._host.run(f"mkfs.{self._kind}", "-q", *EAGER.get(self._kind, ()), str(self._file))
            self._plug_in()
            self._made = made.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._made:
            self._plugged.close()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Unmount the filesystem for the block; its mount point is an empty directory.

        Raises CheckFailed for what was written there: the mount would hide it.
        """
        self._unmount()
        written: list[str] = []
        try:
            yield
        finally:
            written = self._clear_mount_point()
            self._mount()
        expect(
            not written, f"{', '.join(written)} made in {self.path} while nothing was mounted there: prove that it is"
        )

    def occupy(self, size: int) -> AbstractContextManager[None]:
        """Take this many bytes of the filesystem for a block, or all that is left, by a file of somebody else."""
        return occupied_by_a_file(self.path, size)

    def power_cut(self) -> None:
        """Go on with what is on the disk now: what was only in memory is lost, mounts and loop devices above too."""
        copy = next(self._files)
        try:
            self._copy(copy)
        except BaseException:
            copy.unlink(missing_ok=True)
            raise
        self._plugged.close()
        self._file = copy
        self._plug_in()

    def _copy(self, copy: Path) -> None:
        """Copy the disk as of one moment: again, if it was written meanwhile. A freeze would sync it."""
        before = self._file.stat().st_mtime_ns
        for _ in range(COPIES):
            self._host.run("cp", "--sparse=always", str(self._file), str(copy))
            if before == (before := self._file.stat().st_mtime_ns):
                return
        raise CheckFailed(f"{self.path} was written during each of {COPIES} copies of its disk; end what writes to it")

    def _plug_in(self) -> None:
        """Attach the disk and mount it; undo it all if a step fails."""
        with ExitStack() as plugged:
            plugged.callback(self._file.unlink)
            self._device = self._host.run("losetup", "--find", "--show", str(self._file)).stdout.strip()
            plugged.callback(self._host.run, "losetup", "--detach", self._device)
            self._numbers = set()
            plugged.callback(self._unmount)
            self._mount()
            plugged.callback(self._end_devices_above)
            self._plugged = plugged.pop_all()

    def _mount(self) -> None:
        options = OPTIONS.get(self._kind, "defaults")
        self._host.run("mount", "-t", self._kind, "-o", options, self._device, str(self.path))
        self._numbers.add(self.path.stat().st_dev)

    def _unmount(self) -> None:
        while self.path.is_mount():
            self._host.run("umount", "--lazy", str(self.path))

    def _clear_mount_point(self) -> list[str]:
        """Remove what is in the directory itself; return the names."""
        below = f"{os.path.realpath(self.path)}/"
        if self.path.is_mount() or any(one.target.startswith(below) for one in mounts.table()):
            return []
        found = sorted(self.path.iterdir())
        for one in found:
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
            else:
                one.unlink()
        return [one.name for one in found]

    def _end_devices_above(self) -> None:
        """Unmount and detach the loop devices of files on the disk, also of those whose paths are gone."""
        below = f"{os.path.realpath(self.path)}/"
        above = [
            device
            for device, file in loopdev.bound_devices().items()  # a subvolume of btrfs has a number of its own
            if file.startswith(below) or _filesystem_behind(device) in self._numbers
        ]
        for mount in reversed(mounts.table()):
            if Path(mount.source) in above:
                self._host.run("umount", "--lazy", mount.target)
        for device in above:
            with suppress(InUse):  # whoever has it open still reads the old disk
                loopdev.detach(self._host, device)


def _filesystem_behind(device: Path) -> int | None:
    """Return st_dev of a loop device's file, None if it is unknown. The path of a file that was mounted is not kept."""

    def read() -> int:
        descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            info = fcntl.ioctl(descriptor, loopdev.GET_STATUS, bytes(loopdev.INFO_BYTES))
        finally:
            os.close(descriptor)
        number: int = struct.unpack_from("=Q", info)[0]
        return number

    try:
        return ask(f"the filesystem below {device}", read, loopdev.ASK_TIMEOUT)
    except (OSError, Unavailable):
        return None  # somebody else's, which hangs or is gone
