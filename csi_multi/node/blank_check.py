"""Reading a device directly, in exclusive use: whether it reads as zeros, whether it is free, and wiping its start."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..contract.errors import FailedPrecondition, InUse, Unavailable
from ..contract.model import Device
from ..host import exclusive, release, sysfs

END_BYTES = 1024 * 1024  # read at the start and at the end
SAMPLE_BYTES = 4096
SAMPLE_COUNT = 64  # spread evenly over the device
# Where filesystems keep copies of their superblock: ext4 of 1, 2 and 4 KiB blocks, btrfs. xfs depends on the size.
SUPERBLOCK_COPIES = tuple(mib * 1024 * 1024 for mib in (8, 32, 64, 128, 384, 256 * 1024))
_ZEROS = bytes(END_BYTES)
# Populated at once: page faults would cost more than the reads.
_BUFFER_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusiveDevice:
    """An open device. Reads bypass the page cache, so the data comes from the device itself."""

    device: Device
    descriptor: int
    size: int
    buffer: mmap.mmap  # O_DIRECT needs aligned memory

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises Unavailable when the device does not deliver them."""
        try:
            with memoryview(self.buffer) as memory:
                count = os.preadv(self.descriptor, [memory[:length]], offset)
        except OSError as error:
            raise self._read_error(offset, os.strerror(error.errno or 0).lower()) from None
        if count != length:
            raise self._read_error(offset, f"got {count} of {length} bytes")
        return self.buffer[:length]

    def read_ends(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and data of the start and of the end."""
        length = min(END_BYTES, self.size)
        for offset in (0, self.size - length):
            yield offset, self.read(offset, length)

    def read_samples(self) -> Iterator[tuple[int, bytes]]:
        """Yield offset and data of samples spread over the device, and of places where superblocks are copied to."""
        length = min(SAMPLE_BYTES, self.size)
        last = self.size - length
        spread = [last * index // (SAMPLE_COUNT - 1) for index in range(SAMPLE_COUNT)]
        xfs_group = -(-(self.size // SAMPLE_BYTES) // 4) * SAMPLE_BYTES  # the start of the second of four
        for offset in (*spread, *(place for place in (*SUPERBLOCK_COPIES, xfs_group) if place <= last)):
            aligned = offset // SAMPLE_BYTES * SAMPLE_BYTES
            yield aligned, self.read(aligned, length)

    def _read_error(self, offset: int, reason: str) -> Unavailable:
        return Unavailable(
            f"cannot read {self.device.path} at byte {offset}: {reason}; "
            "nothing was written to it; check the storage behind it"
        )


def first_nonzero(chunks: Iterable[tuple[int, bytes]]) -> int | None:
    """Return the offset of the first chunk that is not all zeros. All chunks are read, so that all are readable."""
    found = [offset for offset, data in chunks if data != _ZEROS[: len(data)]]
    return found[0] if found else None


def open_exclusively(device: Device) -> contextlib.AbstractContextManager[ExclusiveDevice]:
    """Open the device for reading, with O_EXCL.

    A mkfs that outlived an earlier process of this driver holds the device, too: the result is then Unavailable, and
    a retry succeeds when that mkfs has ended.
    """
    return open_device(device, os.O_EXCL)


@contextlib.contextmanager
def open_device(device: Device, flags: int = 0) -> Iterator[ExclusiveDevice]:
    """Open the device for reading, past the page cache."""
    try:
        descriptor = exclusive.open_device(device.path, os.O_RDONLY | os.O_DIRECT | flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Unavailable(
                f"{device.path} is in use on this node, perhaps by a mkfs that is still running; try again"
            ) from None
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"cannot open {device.path}: {reason}; check the storage behind it") from None
    try:
        status = os.fstat(descriptor)
        if sysfs.format_number(status.st_rdev) != device.number:
            raise FailedPrecondition(
                f"{device.path} is no longer device {device.number}, so it is not touched; stage the volume again"
            )
        with mmap.mmap(-1, END_BYTES, flags=_BUFFER_FLAGS) as buffer:
            yield ExclusiveDevice(
                device=device, descriptor=descriptor, size=sysfs.size_of(device.number), buffer=buffer
            )
    finally:
        os.close(descriptor)


def await_release(handle: str, device: Device) -> None:
    """Wait until nothing holds the device, which may be shortly after it was unmounted.

    Raises InUse when something keeps holding it. A mount in another mount namespace does so, although it is not in
    the mount table that this process sees.
    """
    if release.stays_in_use(lambda: exclusive.is_held(device.path)):
        raise InUse(
            f"volume {handle!r}: {device.path} is in use on this node, but not by a mount that the driver can see; "
            "look for a process or container that uses it"
        )


def wipe_ends(device: Device) -> None:
    """Zero the start and the end. Only for a new mapper over a device that was blank."""
    size = sysfs.size_of(device.number)
    length = min(END_BYTES, size)
    _write_zeros(device, length, 0, size - length)


def wipe_start(device: Device) -> None:
    """Zero the start, where every filesystem has its signature. Only for what an interrupted mkfs has left."""
    _write_zeros(device, min(END_BYTES, sysfs.size_of(device.number)), 0)


def _write_zeros(device: Device, length: int, *offsets: int) -> None:
    descriptor = exclusive.open_device(device.path, os.O_WRONLY | os.O_EXCL)
    try:
        for offset in offsets:
            os.pwrite(descriptor, bytes(length), offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
