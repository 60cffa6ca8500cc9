"""Zero, scrub and copy block devices. Nothing here depends on LVM.

The target is open exclusively, here or by the caller, from the first to the last byte. So nothing is written to a
device that is mounted, or that another process, such as a copy by an earlier driver, still writes. Reads and writes
bypass the page cache. Every function can be killed at any point and called again, with the same start or the last
recorded one.
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
from csi_multi.host import exclusive

log = logging.getLogger(__name__)

BLKSSZGET = 0x1268  # linux/fs.h
BLKZEROOUT = 0x127F
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EREMOTEIO)  # by BLKZEROOUT
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV)
MIB = 2**20
CHUNK = 4 * MIB  # per read and write, in turn: reading ahead in a thread was not faster on one disk
GRAIN = 64 * 1024  # bytes: zeros of this length stay holes; it is the smallest chunk of a thin pool
ZERO_CHUNK = 256 * MIB  # per ioctl, and a kill waits for at most one
RECORD_INTERVAL = 10.0  # seconds between two records of the progress
_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
_ZEROS = bytes(GRAIN)

Record = Callable[[int], None]


def accept() -> None:
    """Confirm without a check."""


@contextlib.contextmanager
def held(device: Path) -> Iterator[bool]:
    """Hold a device open for the block, exclusively if nothing else uses it; yield whether that is so.

    It is not open for writing, so that nothing looks at it again when it is closed. Raises Unavailable.
    """
    flags, alone = os.O_RDONLY | os.O_EXCL, True
    try:
        descriptor = exclusive.open_device(device, flags)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise _cannot_open(device, error) from error
        alone = False
        try:
            descriptor = exclusive.open_device(device, flags & ~os.O_EXCL)
        except OSError as second:
            raise _cannot_open(device, second) from second
    try:
        yield alone
    finally:
        os.close(descriptor)


def in_use(device: Path) -> Busy:
    return Busy(
        f"{device} is in use on this node: it is mounted, or another process writes to it; try again when it is free"
    )


def zero(device: Path, start: int, end: int, record: Record, *, held: bool = False) -> None:
    """Make bytes [start, end) read as zeros, durably. `held`: this process holds the device exclusively already.

    Calls record(offset) every RECORD_INTERVAL: everything before the offset is done, and survives a power cut.
    Raises Busy when the device is in use, ResourceExhausted when the storage behind it is full, Unavailable.
    """
    with _opened(device, _writing(held), start, end) as disk:
        progress = _WorkProgress(f"zeroing {device}", disk, end, record)
        for offset in range(start, end, ZERO_CHUNK):
            length = min(ZERO_CHUNK, end - offset)
            disk.zero(offset, length)
            progress.reached(offset + length)
        disk.flush(end)


def scrub(device: Path, *, held: bool = False) -> None:
    """Zero the first and last MiB, where signatures of filesystems, partition tables and RAID are. Raises as zero."""
    with _opened(device, _writing(held)) as disk:
        size = disk.size()
        length = min(MIB, size)
        for offset in (0, size - length):
            disk.zero(offset, length)
        disk.flush(size)


def _writing(held: bool) -> int:
    return os.O_WRONLY if held else os.O_WRONLY | os.O_EXCL


def copy(
    source: Path,
    target: Path,
    start: int,
    end: int,
    record: Record,
    confirm: Callable[[], None] = accept,
    *,
    sparse: bool,
) -> None:
    """Copy bytes [start, end), durably. The source must not change until the copy is complete.

    With `sparse`, zeros are not written: the target must read as zeros wherever this copy, or an earlier one of the
    same source, has not written. Calls confirm() before the first write, when the target is open exclusively;
    confirm() raises to prevent the writes. Calls record(), and raises, as zero.
    """
    with (
        _opened(target, os.O_WRONLY | os.O_EXCL, start, end) as writing,
        _opened(source, os.O_RDONLY, start, end) as reading,
        mmap.mmap(-1, CHUNK, flags=_MEMORY) as buffer,
        memoryview(buffer) as memory,
    ):
        confirm()
        progress = _WorkProgress(f"copying {source} to {target}", writing, end, record)
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
    """Yield the ranges of the buffer that hold anything but zeros; adjacent ones are joined for larger writes."""
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
    """An open block device; its errors name the device."""

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
                f"cannot read {self.path} at byte {offset}: only {count} of {len(memory)} bytes could be read; "
                "check whether the device was shrunk or removed"
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
        """Make it read as zeros: by the device's own command if it has one, otherwise by writing zeros."""
        try:
            fcntl.ioctl(self.descriptor, BLKZEROOUT, struct.pack("QQ", offset, length))
        except OSError as error:
            if error.errno not in UNSUPPORTED:
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
        if error.errno == errno.ENOSPC and offset + length <= self.size():  # the size of a removed device is 0
            return ResourceExhausted(
                f"cannot {verb} {self.path} {place}: the storage behind it is full; add space, or delete volumes there"
            )
        return Unavailable(f"cannot {verb} {self.path} {place}: {reason}; check the storage behind it")


@contextlib.contextmanager
def _opened(path: Path, flags: int, start: int = 0, end: int = 0) -> Iterator[_Disk]:
    """Open a block device that has the bytes [start, end)."""
    try:
        descriptor = exclusive.open_device(path, flags | os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise in_use(path) from error
        raise _cannot_open(path, error) from error
    try:
        if not stat.S_ISBLK(os.fstat(descriptor).st_mode):
            raise Unavailable(f"{path} is not a block device and is not touched; check what replaced it")
        disk = _Disk(path, descriptor)
        if disk.size() < end:
            raise Unavailable(
                f"{path} has only {disk.size()} bytes, {end} are needed; check whether it is the right device"
            )
        sector = struct.unpack("i", fcntl.ioctl(descriptor, BLKSSZGET, bytes(4)))[0]
        if (start | end) % sector:  # parts of a sector can only be written through the page cache
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        yield disk
    finally:
        os.close(descriptor)


def _cannot_open(path: Path, error: OSError) -> Unavailable:
    reason = "it does not exist" if error.errno in GONE else os.strerror(error.errno or 0).lower()
    return Unavailable(f"cannot open {path}: {reason}; check the storage behind it")


class _WorkProgress:
    """Logs and records the progress of long work. Only what is durable is recorded."""

    def __init__(self, work: str, disk: _Disk, end: int, record: Record) -> None:
        self._work = work
        self._disk = disk
        self._end = end
        self._record = record
        self._recorded = time.monotonic()

    def reached(self, offset: int) -> None:
        if time.monotonic() - self._recorded < RECORD_INTERVAL:
            return
        self._disk.flush(offset)
        log.info("%s: %d %% of %d MiB done", self._work, offset * 100 // self._end, self._end // MIB)
        self._record(offset)
        self._recorded = time.monotonic()
