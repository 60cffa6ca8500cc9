"""Backups that are built from the allocated and changed blocks are what the snapshots hold."""

import fcntl
import hashlib
import os
import random
import struct
import tracemalloc
from itertools import islice

import pytest
from csi_multi_loop import changed_blocks

from csi_multi.contract import NotFound, OutOfRange, Unavailable
from csi_multi.host import file_extents
from csi_multi.host.file_extents import ExtentFlag

from .conftest import MIB

BLOCK = 4096
BLKDISCARD, BLKZEROOUT = 0x1277, 0x127F  # linux/fs.h
SEEDS = range(20) if os.environ.get("MATRIX") else range(1)


def allocated(backend, snapshot, offset=0):
    return list(backend.allocated_blocks(snapshot, offset, {}).extents)


def changed(backend, base, target, offset=0):
    return list(backend.changed_blocks(base, target, offset, {}).extents)


def offsets(extents):
    return [at for one in extents for at in range(one.offset, one.offset + one.length, BLOCK)]


class Backup:
    """A copy of a volume that gets the blocks of snapshots."""

    def __init__(self, file):
        self._file = file
        file.touch()

    def take(self, image, found):
        """Copy the blocks of a map from a snapshot, and return how many bytes those are."""
        with self._file.open("r+b") as copy, image.open("rb") as source:
            copy.truncate(found.size)
            total = 0
            for one in found.extents:
                data = os.pread(source.fileno(), one.length, one.offset)
                assert len(data) == one.length
                os.pwrite(copy.fileno(), data, one.offset)
                total += one.length
        return total

    def digest(self):
        return file_digest(self._file)


def file_digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def change_at_random(descriptor, size, source):
    """Write, zero and discard ranges of a device, and write zeros: of any length, at any place."""
    for _ in range(source.randrange(12)):
        start = source.randrange(size // BLOCK) * BLOCK
        length = min(source.choice((1, 1, 3, 64, 300)) * BLOCK, size - start)
        way = source.randrange(6)
        if way < 2:
            fcntl.ioctl(descriptor, (BLKDISCARD, BLKZEROOUT)[way], struct.pack("=QQ", start, length))
        else:
            os.pwrite(descriptor, bytes(length) if way == 2 else source.randbytes(length), start)
    os.fsync(descriptor)


@pytest.mark.root
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["xfs", "btrfs", "ext4", "tmpfs"])
def test_ten_increments_make_what_each_snapshot_restores(
    connect, requests, filesystem, opened, image, tmp_path, kind, seed
):
    source, size = random.Random(seed), 16 * MIB
    backend = connect(filesystem(kind, 600 * MIB, memory=kind != "tmpfs") / "pool", overprovision=1000)
    handle = backend.create_volume(requests.volume("v", size)).handle
    backup, base = Backup(tmp_path / "backup"), None
    for number in range(11):
        if number % 4 == 3:
            size = backend.expand_volume(requests.expand(handle, size + 2 * MIB)).size
        descriptor = os.open(opened(backend, handle), os.O_RDWR)
        change_at_random(descriptor, size, source)
        os.close(descriptor)
        backend.close_device(handle)  # where blocks are not shared, it has to be
        target = backend.create_snapshot(requests.snapshot(f"s{number}", handle)).handle
        found = backend.changed_blocks(base, target, 0, {}) if base else backend.allocated_blocks(target, 0, {})
        backup.take(image(backend, target, "snapshots"), found)
        restored = backend.restore_volume(requests.copy(f"r{number}", "snapshot", target)).handle

        assert backup.digest() == file_digest(image(backend, restored)), f"increment {number} of seed {seed}"
        backend.delete_volume(restored, {})
        if base:
            backend.delete_snapshot(base, {})
        base = target


@pytest.mark.root
def test_increments_are_exact_where_the_filesystem_compresses(connect, requests, filesystem, image, host, tmp_path):
    """The place of a compressed extent does not tell its data."""
    disk = filesystem("btrfs", 600 * MIB, memory=True)
    host.run("mount", "-o", "remount,compress-force=zstd", str(disk))
    backend = connect(disk / "pool", overprovision=1000)
    handle = backend.create_volume(requests.volume("v", 16 * MIB)).handle
    backup, base, source = Backup(tmp_path / "backup"), None, random.Random(1)
    for number in range(4):
        with image(backend, handle).open("r+b") as file:
            for _ in range(6):
                start = source.randrange(15 * MIB // BLOCK) * BLOCK
                os.pwrite(file.fileno(), bytes([number + 1]) * source.choice((1, 5, 200)) * BLOCK, start)
            os.fsync(file.fileno())
        target = backend.create_snapshot(requests.snapshot(f"s{number}", handle)).handle
        found = backend.changed_blocks(base, target, 0, {}) if base else backend.allocated_blocks(target, 0, {})
        path = image(backend, target, "snapshots")
        backup.take(path, found)
        with path.open("rb") as file:
            flags = [one.flags for one in file_extents.placed(file.fileno(), 0, 16 * MIB)]

        assert any(one & ExtentFlag.ENCODED for one in flags)
        assert backup.digest() == file_digest(path)
        base = target


@pytest.fixture
def two(connect, requests, filesystem, image):
    """Two snapshots of a volume with data in each second block of a part, of which one block was written since."""

    def two(kind="xfs", size=16 * MIB, blocks=64):
        backend = connect(
            filesystem(kind, max(600 * MIB, size // 500), memory=kind != "tmpfs") / "pool", overprovision=1000
        )
        handle = backend.create_volume(requests.volume("v", size)).handle
        snapshots = []
        for name, written in (("s", range(0, blocks * 2, 2)), ("t", [blocks])):
            with image(backend, handle).open("r+b") as file:
                for number in written:
                    os.pwrite(file.fileno(), os.urandom(BLOCK), number * BLOCK)
                os.fsync(file.fileno())
            snapshots.append(backend.create_snapshot(requests.snapshot(name, handle)).handle)
        return backend, handle, *snapshots

    return two


@pytest.mark.root
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_difference_is_found_without_reading_data_where_blocks_are_shared(two, monkeypatch, kind):
    backend, _, base, target = two(kind)

    def read(*_):
        raise AssertionError("data is read")

    monkeypatch.setattr(changed_blocks._Image, "read", read)

    assert offsets(changed(backend, base, target)) == [64 * BLOCK]
    assert offsets(allocated(backend, target)) == [number * BLOCK for number in range(0, 128, 2)]
    assert changed(backend, target, target) == []


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_elsewhere_only_what_is_no_hole_is_read(two, monkeypatch, kind):
    backend, _, base, target = two(kind)
    total, read = [0], changed_blocks._Image.read

    def counted(self, start, end):
        total[0] += end - start
        return read(self, start, end)

    monkeypatch.setattr(changed_blocks._Image, "read", counted)

    assert offsets(changed(backend, base, target)) == [64 * BLOCK]
    assert total[0] <= 4 * 64 * BLOCK


@pytest.mark.root
@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_a_map_goes_on_from_any_offset(two, kind):
    backend, _, base, target = two(kind)
    for read in (lambda at: allocated(backend, target, at), lambda at: changed(backend, base, target, at)):
        whole = set(offsets(read(0)))
        for at in (1, BLOCK, 64 * BLOCK, 64 * BLOCK + 1, 65 * BLOCK, 16 * MIB - 1, 16 * MIB):
            assert set(offsets(read(at))) == {one for one in whole if one + BLOCK > at}
        with pytest.raises(OutOfRange, match="beyond the end"):
            read(16 * MIB + 1)


@pytest.mark.root
def test_places_that_may_not_be_trusted_are_compared(two, monkeypatch):
    """Those that the kernel does not tell, and those of a file whose blocks are moved meanwhile."""
    backend, _, base, target = two()
    placed, calls = file_extents.placed, []

    def encoded(*arguments):
        return [one._replace(flags=one.flags | ExtentFlag.ENCODED, place=0) for one in placed(*arguments)]

    def moving(*arguments):
        calls.append(arguments)
        return [one._replace(place=7 * len(calls)) for one in placed(*arguments)]

    for lie in (encoded, moving):
        monkeypatch.setattr(file_extents, "placed", lie)
        assert offsets(changed(backend, base, target)) == [64 * BLOCK]


@pytest.mark.root
def test_a_map_of_a_huge_volume_takes_little_memory_and_begins_at_once(two):
    backend, _, base, target = two(size=1 << 40, blocks=8000)
    tracemalloc.start()
    try:
        count = sum(1 for _ in backend.allocated_blocks(target, 0, {}).extents)
        changes = list(backend.changed_blocks(base, target, 0, {}).extents)
        first = list(islice(backend.allocated_blocks(target, 0, {}).extents, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (count, len(changes), first[0].offset) == (8000, 1, 0)
    assert peak < 4 * MIB


def test_a_map_is_read_to_its_end_after_a_deletion(backend, requests, filled):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled)).handle
    expected = allocated(backend, snapshot)
    blocks = backend.allocated_blocks(snapshot, 0, {}).extents
    backend.delete_snapshot(snapshot, {})

    assert list(blocks) == expected != []
    with pytest.raises(NotFound):
        backend.allocated_blocks(snapshot, 0, {})


def test_a_map_that_is_not_read_keeps_no_file_open(backend, requests, filled):
    snapshot = backend.create_snapshot(requests.snapshot("s", filled)).handle
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        backend.changed_blocks(snapshot, snapshot, 0, {})
        next(backend.allocated_blocks(snapshot, 0, {}).extents)

    assert len(os.listdir("/proc/self/fd")) == before


def test_an_image_that_becomes_shorter_is_no_zeros(backend, requests, image, filled):
    base = backend.create_snapshot(requests.snapshot("s", filled)).handle
    target = backend.create_snapshot(requests.snapshot("t", filled)).handle
    blocks = backend.changed_blocks(base, target, 0, {}).extents
    os.truncate(image(backend, target, "snapshots"), 2 * MIB)

    with pytest.raises(Unavailable, match="became shorter"):
        list(blocks)


def test_zeros_and_holes_are_the_same_and_data_and_holes_are_not(backend, requests, image):
    handle = backend.create_volume(requests.volume("v", MIB)).handle
    snapshots = []
    for number, data in enumerate((b"", bytes(BLOCK), b"x" * BLOCK, b"", bytes(2 * BLOCK))):
        with image(backend, handle).open("r+b") as file:
            file.truncate(0)
            file.truncate(MIB)
            file.write(data)
        snapshots.append(backend.create_snapshot(requests.snapshot(f"s{number}", handle)).handle)
    hole, zeros, data, again, more = snapshots

    assert changed(backend, zeros, more) == changed(backend, hole, zeros) == []
    for base, target in ((hole, data), (data, again), (zeros, data), (data, zeros), (data, more)):
        assert offsets(changed(backend, base, target)) == [0]
