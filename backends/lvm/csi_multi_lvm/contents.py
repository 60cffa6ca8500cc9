"""What block devices hold: zeroed, scrubbed, copied. Knows bytes and devices, and nothing of LVM.

Whoever writes holds the device exclusively from first to last byte, so that a copy which an earlier
process left running, a mount, or anybody else is never written under. Bytes go past the page cache.
Every function can be killed anywhere and called again, with the same start or the last one noted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Busy, ResourceExhausted, StorageError, Unavailable

log = logging.getLogger(__name__)

BLKSSZGET = 0x1268  # linux/fs.h
BLKZEROOUT = 0x127F
REFUSED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EREMOTEIO)  # it cannot zero by itself
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)
MIB = 2**20
CHUNK = 4 * MIB  # per read and write; one after the other: reading ahead in a thread gained nothing on one disk
GRAIN = 64 * 1024  # bytes: holes of this size stay holes; the smallest chunk of a thin pool
ZEROED = 256 * MIB  # per ioctl: a kill waits for at most one
NOTED = 10.0  # seconds between two notes of how far the work is
_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
_ZEROS = bytes(GRAIN)

Note = Callable[[int], None]


def nothing() -> None:
    """Confirm without looking."""


def zero(device: Path, start: int, end: int, note: Note, confirm: Callable[[], None] = nothing) -> None:
    """Make bytes [start, end) read as zeros, durably.

    Calls confirm() before the first write, when nobody else can have the device open exclusively any more:
    it raises to stop the work. Now and then calls note(offset): everything before it is done, and survives a
    power cut. Raises Busy when the device is in use, ResourceExhausted when the storage behind it is full, Unavailable.
    """
    with _opened(device, os.O_WRONLY | os.O_EXCL, start, end) as disk:
        confirm()
        progress = _Progress(f"zeroing {device}", disk, end, note)
        for offset in range(start, end, ZEROED):
            length = min(ZEROED, end - offset)
            disk.zero(offset, length)
            progress.reached(offset + length)
        disk.flush(end)


def scrub(device: Path, confirm: Callable[[], None] = nothing) -> None:
    """Zero the first and last MiB: where filesystems, partition tables and RAID members sign. Raises as zero."""
    with _opened(device, os.O_WRONLY | os.O_EXCL) as disk:
        confirm()
        size = disk.size()
        length = min(MIB, size)
        for offset in (0, size - length):
            disk.zero(offset, length)
        disk.flush(size)


def copy(
    source: Path,
    target: Path,
    start: int,
    end: int,
    note: Note,
    confirm: Callable[[], None] = nothing,
    *,
    sparse: bool,
) -> None:
    """Copy bytes [start, end), durably. The source must not change until a copy is complete.

    With sparse, zeros are not written: the target must read as zeros wherever this copy, or an
    earlier one of the same source, has not written. Confirms, notes and raises as zero.
    """
    with (
        _opened(target, os.O_WRONLY | os.O_EXCL, start, end) as writing,
        _opened(source, os.O_RDONLY, start, end) as reading,
        mmap.mmap(-1, CHUNK, flags=_MEMORY) as buffer,
        memoryview(buffer) as memory,
    ):
        confirm()
        progress = _Progress(f"copying {source} to {target}", writing, end, note)
        for offset in range(start, end, CHUNK):
            length = min(CHUNK, end - offset)
            with memory[:length] as chunk:
                reading.read(chunk, offset)
            for first, last in _data(buffer, length) if sparse else [(0, length)]:
                with memory[first:last] as data:
                    writing.write(data, offset + first)
            progress.reached(offset + length)
        writing.flush(end)


def _data(buffer: mmap.mmap, length: int) -> Iterator[tuple[int, int]]:
    """Yield where the buffer holds anything but zeros, neighbours joined, so that few large writes remain."""
    first = None
    for offset in range(0, length, GRAIN):
        size = min(GRAIN, length - offset)
        if buffer[offset : offset + size] != _ZEROS[:size]:
            first = offset if first is None else first
        elif first is not None:
            yield first, offset
            first = None
    if first is not None:
        yield first, length


@dataclass(frozen=True, slots=True)
class _Disk:
    """An open block device, whose errors name it."""

    path: Path
    descriptor: int

    def size(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_END)

    def read(self, memory: memoryview, offset: int) -> None:
        """Fill the memory."""
        try:
            count = os.preadv(self.descriptor, [memory], offset)
        except OSError as error:
            raise self._failed("read", offset, len(memory), error) from error
        if count != len(memory):
            raise Unavailable(
                f"cannot read {self.path} at byte {offset}: only {count} of {len(memory)} bytes came; "
                "check whether the device became shorter or vanished"
            )

    def write(self, memory: memoryview, offset: int) -> None:
        done = 0
        while done < len(memory):
            with memory[done:] as rest:
                try:
                    done += os.pwritev(self.descriptor, [rest], offset + done)
                except OSError as error:
                    raise self._failed("write", offset + done, len(rest), error) from error

    def zero(self, offset: int, length: int) -> None:
        """Make it read as zeros: by the device itself, which may take no time, else by writing them."""
        try:
            fcntl.ioctl(self.descriptor, BLKZEROOUT, struct.pack("QQ", offset, length))
        except OSError as error:
            if error.errno not in REFUSED:
                raise self._failed("zero", offset, length, error) from error
        else:
            return
        with mmap.mmap(-1, min(CHUNK, length), flags=_MEMORY) as buffer, memoryview(buffer) as memory:
            for position in range(offset, offset + length, len(memory)):
                with memory[: offset + length - position] as zeros:
                    self.write(zeros, position)

    def flush(self, offset: int) -> None:
        """Make what was written durable."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise self._failed("flush", offset, 0, error) from error

    def _failed(self, verb: str, offset: int, length: int, error: OSError) -> StorageError:
        reason = os.strerror(error.errno or 0).lower()
        place = f"at byte {offset}" + (f" (of {length} bytes)" if length else "")
        if error.errno == errno.ENOSPC and offset + length <= self.size():  # a vanished device's size is 0
            return ResourceExhausted(
                f"cannot {verb} {self.path} {place}: the storage behind it is full; add space, or delete volumes there"
            )
        return Unavailable(f"cannot {verb} {self.path} {place}: {reason}; check the storage behind it")


@contextlib.contextmanager
def _opened(path: Path, flags: int, start: int = 0, end: int = 0) -> Iterator[_Disk]:
    """Open a block device that has the bytes [start, end)."""
    try:
        descriptor = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Busy(f"{path} is in use on this node: mounted, or written by work that still runs") from error
        reason = "it does not exist" if error.errno in GONE else os.strerror(error.errno or 0).lower()
        raise Unavailable(f"cannot open {path}: {reason}; check the storage behind it") from error
    try:
        if not stat.S_ISBLK(os.fstat(descriptor).st_mode):
            raise Unavailable(f"{path} is not a block device: refusing to touch it")
        disk = _Disk(path, descriptor)
        if disk.size() < end:
            raise Unavailable(f"{path} has only {disk.size()} bytes, not {end}; check whether it is the right device")
        sector = struct.unpack("i", fcntl.ioctl(descriptor, BLKSSZGET, bytes(4)))[0]
        if (start | end) % sector:  # only the page cache knows how to write a part of a sector
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        yield disk
    finally:
        os.close(descriptor)


class _Progress:
    """Tells how far long work is, of what is durable only."""

    def __init__(self, what: str, disk: _Disk, end: int, note: Note) -> None:
        self._what = what
        self._disk = disk
        self._end = end
        self._note = note
        self._told = time.monotonic()

    def reached(self, offset: int) -> None:
        if time.monotonic() - self._told < NOTED:
            return
        self._disk.flush(offset)
        log.info("%s: %d %% of %d MiB", self._what, offset * 100 // self._end, self._end // MIB)
        self._note(offset)
        self._told = time.monotonic()
