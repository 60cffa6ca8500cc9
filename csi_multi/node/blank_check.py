"""Read a device, and hold it alone meanwhile: the proof that it holds no data starts here."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..contract.errors import FailedPrecondition, InUse, Unavailable
from ..contract.model import Device
from ..host import sysfs

END = 1024 * 1024  # bytes read at the start and at the end
SAMPLE = 4096
SAMPLES = 64  # spread evenly over the device
_ZEROS = bytes(END)
_MEMORY = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE  # page faults would cost more than the reads
PATIENCE = 2.0  # seconds: btrfs lets go of its device after umount has returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """An open device. Reads go past the page cache, so that it is the device that answers."""

    device: Device
    descriptor: int
    size: int
    buffer: mmap.mmap  # O_DIRECT wants aligned memory

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly so much. Raises Unavailable when the device cannot."""
        try:
            with memoryview(self.buffer) as memory:
                count = os.preadv(self.descriptor, [memory[:length]], offset)
        except OSError as error:
            raise self._unreadable(offset, os.strerror(error.errno or 0).lower()) from None
        if count != length:
            raise self._unreadable(offset, f"only {count} of {length} bytes came")
        return self.buffer[:length]

    def ends(self) -> Iterator[tuple[int, bytes]]:
        """Read start and end."""
        length = min(END, self.size)
        for offset in (0, self.size - length):
            yield offset, self.read(offset, length)

    def samples(self) -> Iterator[tuple[int, bytes]]:
        length = min(SAMPLE, self.size)
        for index in range(SAMPLES):
            offset = (self.size - length) * index // (SAMPLES - 1) // SAMPLE * SAMPLE
            yield offset, self.read(offset, length)

    def _unreadable(self, offset: int, reason: str) -> Unavailable:
        return Unavailable(
            f"cannot read {self.device.path} at byte {offset}: {reason}; "
            "nothing was written to it; check the storage behind it"
        )


def data_on(disk: Disk, *, samples: bool) -> int | None:
    """Return a place that does not read as zeros: at the ends, and if wanted, at the samples between."""
    found = data_in(disk.ends())
    return data_in(disk.samples()) if samples and found is None else found


def data_in(chunks: Iterable[tuple[int, bytes]]) -> int | None:
    """Return the place of the first chunk that is not all zeros. Every chunk is read, also after that."""
    found = [offset for offset, data in chunks if data != _ZEROS[: len(data)]]
    return found[0] if found else None


@contextlib.contextmanager
def alone(device: Device) -> Iterator[Disk]:
    """Open the device for reading, exclusively.

    A mkfs that an earlier process of this driver left behind holds the device too: Unavailable, and
    the retry comes when it has finished.
    """
    with opened(device, os.O_EXCL) as disk:
        yield disk


@contextlib.contextmanager
def opened(device: Device, flags: int = 0) -> Iterator[Disk]:
    try:
        descriptor = os.open(device.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Unavailable(f"{device.path} is in use on this node, perhaps by a mkfs that still runs") from None
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"cannot open {device.path}: {reason}; check the storage behind it") from None
    try:
        status = os.fstat(descriptor)
        if sysfs.format_number(status.st_rdev) != device.number:
            raise FailedPrecondition(f"{device.path} became another device than {device.number}; refusing to touch it")
        with mmap.mmap(-1, END, flags=_MEMORY) as buffer:
            yield Disk(device=device, descriptor=descriptor, size=sysfs.size_of(device.number), buffer=buffer)
    finally:
        os.close(descriptor)


def await_release(handle: str, device: Device) -> None:
    """Wait until nobody holds the device, which may be a little after it was unmounted.

    Raises InUse for one who stays: a mount in another namespace is not in our mount table, but holds
    the device all the same.
    """
    ends = time.monotonic() + PATIENCE
    while _held(device):
        if time.monotonic() > ends:
            raise InUse(
                f"volume {handle!r}: {device.path} is in use on this node, though not mounted in the driver's sight; "
                "look for a process or container that uses it"
            )
        time.sleep(0.01)


def _held(device: Device) -> bool:
    try:
        os.close(os.open(device.path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def wipe(device: Device) -> None:
    """Zero the start, where every filesystem has its signature. Only for torn work of mkfs."""
    descriptor = os.open(device.path, os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, bytes(min(END, sysfs.size_of(device.number))), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
