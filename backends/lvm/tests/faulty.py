"""Disks that a test can make fail, and a group on such disks.

A disk is a device-mapper device on a loop device. Its table is replaced while it is in use. LVM sees the
device-mapper device only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from csi_multi.host import loopdev
from csi_multi.host.command import LocalHost

from . import ondisk
from .group import EXTENT, LIMIT, MIB, POOL, Group, Lvm, _numbers

SECTOR = 512
DATA = MIB // SECTOR  # sectors from which on a disk holds data: vgcreate puts its metadata before


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A disk that can be broken and repaired, also while it is in use."""

    lvm: Lvm
    name: str
    below: Path
    sectors: int

    @property
    def path(self) -> Path:
        return Path("/dev/mapper") / self.name

    def plug(self) -> None:
        """Let it appear, and work."""
        self.lvm.run("dmsetup", "create", self.name, "--table", self._good(0, self.sectors))
        self.lvm.run("dmsetup", "mknodes", self.name)  # where udev does not

    def pull(self) -> None:
        """Let it disappear; it must not be in use."""
        self.lvm.run("dmsetup", "remove", "--retry", self.name)
        self.lvm.run("dmsetup", "mknodes", self.name)

    def mend(self) -> None:
        if self.path.exists():
            self._switch(self._good(0, self.sectors))
        else:
            self.plug()

    def die(self) -> None:
        """Let all reads and writes fail."""
        self._switch(f"0 {self.sectors} error")

    def refuse_writes(self) -> None:
        """Let all writes fail."""
        self._switch(self._read_only(0, self.sectors))

    def lose_data(self) -> None:
        """Let reads and writes of the volumes' data fail; LVM's metadata stays intact."""
        rest = self.sectors - DATA
        self._switch(f"{self._good(0, DATA)}\n{DATA} {rest} error")

    def refuse_data(self) -> None:
        """Let writes of the volumes' data fail; LVM's metadata stays intact."""
        self._switch(f"{self._good(0, DATA)}\n{self._read_only(DATA, self.sectors - DATA)}")

    def _good(self, start: int, length: int) -> str:
        return f"{start} {length} linear {self.below} {start}"

    def _read_only(self, start: int, length: int) -> str:
        return f"{start} {length} flakey {self.below} {start} 0 1 1 error_writes"

    def _switch(self, table: str) -> None:
        self.lvm.host.run("dmsetup", "load", self.name, stdin=table, timeout=LIMIT)
        self.lvm.run("dmsetup", "resume", self.name)


@dataclass(frozen=True, kw_only=True)
class Faulty(Group):
    """A group on two disks that can fail. The pool is on the first one."""

    first: Disk
    second: Disk

    @contextmanager
    def only_on(self, disk: Disk) -> Iterator[None]:
        """Let LVM allocate on this disk alone."""
        other = self.second if disk is self.first else self.first
        self.lvm.run("pvchange", "-qq", "-x", "n", str(other.path))
        try:
            yield
        finally:
            self.lvm.run("pvchange", "-qq", "-x", "y", str(other.path))

    def mend(self) -> None:
        """Repair both disks, and let LVM use them again."""
        for disk in (self.first, self.second):
            disk.mend()
        if self.lvm.run("vgs", "--noheadings", "-o", "vg_missing_pv_count", self.name) != ["0"]:
            self.lvm.run("vgextend", "-qq", "--restoremissing", self.name, *map(str, self.disks))


def resume_devices(group: Group) -> None:
    """Resume the devices that a failed test left suspended, so that their users can end."""
    for name in sorted(group.devices(), key=len, reverse=True):
        LocalHost().run("dmsetup", "resume", name, ok=(0, 1), timeout=20)


def clear(group: Group) -> None:
    """Remove what tests have left in a group. Raises AssertionError if there was anything."""
    left = group.left()
    for name in left:
        group.lvm.host.run("lvremove", "-qq", "-ff", "-y", f"{group.name}/{name}", ok=(0, 5), timeout=LIMIT)
    assert left == []


@contextmanager
def faulty_group(lvm: Lvm, directory: Path, *, size: int = 256 * MIB, pool: int = 0) -> Iterator[Faulty]:
    """Create a group of two such disks, with a thin pool of `pool` bytes or none, and remove it with its volumes."""
    directory = directory / "faulty"
    directory.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        first, second = (undo.enter_context(_disk(lvm, directory / f"disk{number}", size)) for number in range(2))
        disks = (first.path, second.path)
        undo.callback(lvm.forget, *disks)
        lvm.use(*disks)
        name = f"csi-test-faulty-{next(_numbers)}"
        lvm.run("vgcreate", "-qq", "--setautoactivation", "n", "-s", f"{EXTENT}b", name, *map(str, disks))
        undo.callback(lvm.run, "vgremove", "-qq", "-ff", "-y", name)
        if pool:
            words = ("-L", f"{pool}b", "-V", f"{EXTENT}b", "-n", "first", "-T", f"{name}/{POOL}", str(first.path))
            lvm.run("lvcreate", "-qq", *words)
            lvm.run("lvremove", "-qq", "-y", f"{name}/first")  # a pool that was used has one device more
        own = frozenset(ondisk.volumes(first.path))
        yield Faulty(lvm=lvm, name=name, disks=disks, pool=POOL if pool else "", own=own, first=first, second=second)


@contextmanager
def _disk(lvm: Lvm, file: Path, size: int) -> Iterator[Disk]:
    with file.open("wb") as content:
        content.truncate(size)
    below = loopdev.attach(lvm.host, file)
    try:
        disk = Disk(lvm=lvm, name=f"csi-test-disk{next(_numbers)}", below=below, sectors=size // SECTOR)
        disk.plug()
        try:
            yield disk
        finally:
            disk.pull()
    finally:
        loopdev.detach(lvm.host, below)
