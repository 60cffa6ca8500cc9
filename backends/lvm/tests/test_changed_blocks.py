"""Backups that are built from the allocated and changed blocks are what the snapshots hold, on real LVM."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from csi_multi_lvm import changed_blocks
from csi_multi_lvm.backend import LvmBackend

from csi_multi.contract import BlockMap, Busy, Extent, NotFound, OutOfRange, Snapshot, Volume
from csi_multi.host.command import LocalHost

from .faulty import clear
from .group import EXTENT, MIB, Group, Lvm, volume_group
from .matrix import FULL
from .volume_steps import create, delete, expand, opened, refused, snapshot

pytestmark = pytest.mark.devicemapper

BLOCK = 4096
BLKDISCARD, BLKZEROOUT = 0x1277, 0x127F  # linux/fs.h
SEEDS = range(20) if FULL else range(1)
INCREMENTS = 10 if FULL else 3  # in a guest each takes half a minute

Make = Callable[..., LvmBackend]


@pytest.fixture(scope="module")
def group(lvm: Lvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with volume_group(lvm, tmp_path_factory.mktemp("blocks"), disks=1, size=768 * MIB, pool=256 * MIB) as group:
        yield group


@pytest.fixture(autouse=True)
def nothing_left(group: Group) -> Iterator[None]:
    yield
    clear(group)


def change_at_random(path: Path, size: int, source: random.Random) -> None:
    """Write, zero and discard ranges of a device, and write zeros: of any length, at any place.

    A volume with thick snapshots can discard nothing.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        for _ in range(source.randrange(1, 10)):
            start = source.randrange(size // BLOCK) * BLOCK
            length = min(source.choice((1, 3, 64, 300)) * BLOCK, size - start)
            way = source.randrange(5)
            if way < 2:
                with suppress(OSError) if way == 0 else nullcontext():
                    fcntl.ioctl(descriptor, (BLKDISCARD, BLKZEROOUT)[way], struct.pack("=QQ", start, length))
            else:
                os.pwrite(descriptor, bytes(length) if way == 2 else source.randbytes(length), start)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Backup:
    """A copy of a volume that gets the blocks of snapshots, which are read from their own devices."""

    def __init__(self, group: Group, file: Path) -> None:
        self._group = group
        self._file = file
        file.touch()

    def take(self, member: Snapshot, found: BlockMap, *, active: str) -> int:
        """Copy the blocks of a map; return how many bytes those are. Both hold the same afterwards."""
        leaf = member.handle.rpartition("/")[2]
        extents = list(found.extents)
        self._group.lvm.run("lvchange", "-qq", "-ay", "-K", f"{self._group.name}/{active or f'csis-{leaf}'}")
        try:
            with self._file.open("r+b") as copy, Path(f"/dev/{self._group.name}/csis-{leaf}").open("rb") as source:
                copy.truncate(found.size)
                for one in extents:
                    data = os.pread(source.fileno(), one.length, one.offset)
                    assert len(data) == one.length
                    os.pwrite(copy.fileno(), data, one.offset)
                source.seek(0)
                held = hashlib.sha256(source.read(found.size)).hexdigest()
        finally:
            self._group.lvm.run("lvchange", "-qq", "-an", f"{self._group.name}/{active or f'csis-{leaf}'}")
        assert hashlib.sha256(self._file.read_bytes()).hexdigest() == held
        return sum(one.length for one in extents)


@pytest.mark.parametrize("seed", SEEDS)
def test_increments_make_what_each_snapshot_holds(backend_on: Make, group: Group, tmp_path: Path, seed: int) -> None:
    source, size, ours = random.Random(seed), 4 * EXTENT, backend_on(group)
    volume = create(ours, "v", size, type="thin")
    backup, base = Backup(group, tmp_path / "backup"), None
    for number in range(1 + INCREMENTS):
        if number % 4 == 3:
            size = expand(ours, volume, size + EXTENT)
        with opened(ours, volume) as device:
            if number == 5:
                LocalHost().run("mkfs.ext4", "-q", "-F", str(device.path))
            change_at_random(device.path, size, source)
        target = snapshot(ours, f"s{number}", volume)
        found = (
            ours.changed_blocks(base.handle, target.handle, 0, {})
            if base
            else ours.allocated_blocks(target.handle, 0, {})
        )
        backup.take(target, found, active="")
        if base:
            delete(ours, base)
        base = target
    assert base
    delete(ours, base, volume)


def test_increments_of_a_thick_volume_are_compared(backend_on: Make, group: Group, tmp_path: Path) -> None:
    source, size, ours = random.Random(0), 4 * EXTENT, backend_on(group)
    volume = create(ours, "v", size, type="linear")
    backup, made = Backup(group, tmp_path / "backup"), []
    for number in range(4):
        with opened(ours, volume) as device:
            change_at_random(device.path, size, source)
        made.append(snapshot(ours, f"s{number}", volume))
        if number == 0:
            found = ours.allocated_blocks(made[0].handle, 0, {})
        else:
            found = ours.changed_blocks(made[-2].handle, made[-1].handle, 0, {})
        taken = backup.take(made[-1], found, active="csi-v")
        assert taken == size if number == 0 else taken < size
    delete(ours, *made, volume)
    assert group.devices() == [one for one in group.devices() if "-csi" not in one.removeprefix("csi--test")]


@pytest.fixture
def two(backend_on: Make, group: Group) -> Iterator[tuple[LvmBackend, Volume, Snapshot, Snapshot]]:
    """Two snapshots of a volume with data at its beginning, of which a block was written in between."""
    ours = backend_on(group)
    volume = create(ours, "v", 4 * EXTENT, type="thin")
    made = []
    for name, offset, length in (("s", 0, 2 * MIB), ("t", MIB, BLOCK)):
        with opened(ours, volume) as device, device.path.open("r+b") as disk:
            disk.seek(offset)
            disk.write(os.urandom(length))
        made.append(snapshot(ours, name, volume))
    yield ours, volume, made[0], made[1]
    delete(ours, *made, volume)


def extents(found: BlockMap) -> list[Extent]:
    return list(found.extents)


def test_a_difference_is_found_without_reading_data(
    two: tuple[LvmBackend, Volume, Snapshot, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _, base, target = two

    def read(*_: object) -> bytes:
        raise AssertionError("data is read")

    monkeypatch.setattr(changed_blocks, "_read", read)
    [one] = extents(ours.changed_blocks(base.handle, target.handle, 0, {}))
    assert one.offset <= MIB < one.offset + one.length
    assert one.length < MIB
    assert extents(ours.changed_blocks(base.handle, base.handle, 0, {})) == []
    assert extents(ours.allocated_blocks(target.handle, 0, {})) == [Extent(offset=0, length=2 * MIB)]
    [rest] = extents(ours.allocated_blocks(target.handle, MIB + 1, {}))
    assert (rest.offset <= MIB, rest.offset + rest.length) == (True, 2 * MIB)
    assert extents(ours.allocated_blocks(target.handle, 2 * MIB, {})) == []
    for ask in (
        lambda: ours.allocated_blocks(target.handle, 4 * EXTENT + 1, {}),
        lambda: ours.changed_blocks(base.handle, target.handle, 4 * EXTENT + 1, {}),
    ):
        with refused(OutOfRange, "beyond the end"):
            ask()
    with refused(NotFound):
        ours.changed_blocks(base.handle, target.handle + "0", 0, {})


def test_a_copy_of_the_metadata_that_a_dead_process_left_is_released_and_another_programs_is_not(
    two: tuple[LvmBackend, Volume, Snapshot, Snapshot], group: Group
) -> None:
    ours, volume, base, target = two
    pool = f"{group.name.replace('-', '--')}-{group.pool}"
    with opened(ours, volume):
        group.lvm.run("dmsetup", "message", f"{pool}-tpool", "0", "reserve_metadata_snap")
        with Path(f"/dev/mapper/{pool}_tmeta").open("rb"), refused(Busy, "another program reads"):
            ours.allocated_blocks(target.handle, 0, {})
        assert len(extents(ours.changed_blocks(base.handle, target.handle, 0, {}))) == 1

        [status] = group.lvm.run("dmsetup", "status", f"{pool}-tpool")
        assert status.split()[6] == "-", "it is released"
