"""Which volume a block device shows: the serial number of an NVMe disk, or a note about a Xen disk.

An NVMe disk carries its volume's id as serial number. A Xen disk carries nothing of its volume, only the device name
of the attachment. When it is opened, the controller names the volume. A note then keeps the volume with the diskseq of
the disk, which proves later that it is the same disk. Linux before 5.15 has no diskseq: there the driver does not
notice when another volume takes the name of a disk that is open.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath

from csi_multi.contract import Blank, InUse, Unavailable
from csi_multi.host import blockdev
from csi_multi.host.blockdev import open_descriptor, os_errors_as_unavailable
from csi_multi.host.device_notes import DeviceNotes

from . import nvme_commands

SERIAL = "device/serial"  # of an NVMe controller, or with several paths of the subsystem: the same number
XEN_NODE = "device/nodename"  # the disk's place in XenStore, such as device/vbd/51792
DISKSEQ = "diskseq"
NOTES_DIRECTORY = "csi-multi-ebs"  # below /dev
READ_BYTES = 2**20  # read at a time


class NvmeKernel(blockdev.BlockDevices):
    """The kernel's view of block devices, and of NVMe disks that have grown."""

    def bytes_behind(self, disk: str, path: Path) -> int | None:
        """Return the size that the NVMe controller reports, which the kernel may not have noticed; None: no NVMe."""
        namespace = self.text(disk, "nsid")
        if namespace is None:
            return None
        with os_errors_as_unavailable(path), open_descriptor(path) as descriptor:
            return nvme_commands.namespace_size(descriptor, int(namespace))

    def log_page(self, disk: str, path: Path, page: int) -> bytes | None:
        """Return a log page of an NVMe disk; None where there is none, also of a disk that was just pulled."""
        namespace = self.text(disk, "nsid")
        if namespace is None:
            return None
        try:
            with open_descriptor(path) as descriptor:
                return nvme_commands.log_page(descriptor, int(namespace), page)
        except OSError:
            return None

    def rescan(self, disk: str) -> None:
        """Let the kernel read the controllers of an NVMe disk again."""
        # The controller, or with several paths the subsystem above the controllers.
        device = self.sys / "block" / disk / "device"
        for file in (device / "rescan_controller", *device.glob("nvme*/rescan_controller")):
            if file.exists():
                with os_errors_as_unavailable(file):
                    file.write_text("1")

    def disk_identity(self, disk: str) -> str:
        """Return what tells an NVMe disk from others, its serial number; of another disk the name."""
        return (self.text(disk, SERIAL) or "").strip() or disk

    def is_plugged(self, handle: str) -> bool:
        """Return whether the volume may be attached: Xen disks do not say which volume they are."""
        serial = handle.replace("-", "")
        return any(self.disk_identity(disk) == serial or self.text(disk, XEN_NODE) for disk in self.disks())

    def read_zeros(self, path: Path, start: int, size: int, seconds: float) -> tuple[int, bool]:
        """Read from `start` for some seconds; return up to where there are only zeros, and whether data follows."""
        end, zeros = time.monotonic() + seconds, bytes(READ_BYTES)
        with (
            mmap.mmap(-1, READ_BYTES) as buffer,  # O_DIRECT needs aligned memory
            os_errors_as_unavailable(path),
            open_descriptor(path, os.O_DIRECT) as descriptor,
            memoryview(buffer) as memory,
        ):
            while start < size:
                length = min(READ_BYTES, size - start)
                if (count := os.preadv(descriptor, [memory[:length]], start)) != length:
                    raise Unavailable(f"{path}: read {count} of {length} bytes at byte {start}; try again")
                if buffer[:length] != zeros[:length]:
                    return start, True
                start += length
                if time.monotonic() > end:
                    break
        return start, False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDevice:
    """What was known of a volume when it was opened.

    `sequence` is the kernel's diskseq (Linux 5.15 and later): no two disks have the same one between two boots.
    """

    disk: str  # its name in /sys/block at that time
    sequence: str
    blank: Blank

    def is_disk(self, sequence: str | None) -> bool:
        """Return whether a disk with this diskseq is the one that was opened; True when neither has any."""
        return (sequence or "") == self.sequence


class OpenDevices:
    """The volumes that are open on this node: a note for each below /dev.

    An attached volume has a device whether it is open or not, and the device does not have what the controller knew of
    the volume. Every method raises Unavailable when the notes cannot be read or written.
    """

    def __init__(self, dev: Path) -> None:
        self._notes = DeviceNotes(dev / NOTES_DIRECTORY)

    def write(self, handle: str, note: OpenDevice) -> None:
        """Note that the volume is open; atomic."""
        self._notes.write(handle, {**asdict(note), "blank": note.blank.value})

    def read(self, handle: str) -> OpenDevice | None:
        """Return the note, None when the volume is not open or the note was not written by this driver."""
        facts = self._notes.read(handle)
        try:
            return OpenDevice(disk=facts["disk"], sequence=facts["sequence"], blank=Blank(facts["blank"]))
        except (ValueError, KeyError):
            return None

    def remove(self, handle: str) -> None:
        self._notes.remove(handle)

    def others(self, handle: str) -> dict[str, OpenDevice]:
        """Return the notes of all other volumes."""
        names = [name for name in self._notes.names() if name != handle]
        return {name: note for name in names if (note := self.read(name))}


def find_xen_disk(kernel: NvmeKernel, attachment: str) -> str | None:
    """Return the Xen disk of a device name of EC2 (/dev/xvdba or /dev/sdba), None without one."""
    name = PurePath(attachment).name
    for disk in (name, name.replace("sd", "xvd", 1)):
        if disk and (kernel.text(disk, XEN_NODE) or "").startswith("device/vbd/"):
            return disk
    return None


def open_xen_disk(kernel: NvmeKernel, note: OpenDevice) -> str | None:
    """Return the disk that was opened, None when it is gone, even if another disk has its name now."""
    same = note.is_disk(kernel.text(note.disk, DISKSEQ))
    return note.disk if same and kernel.text(note.disk, XEN_NODE) else None


def xen_proof(kernel: NvmeKernel, disk: str, note: OpenDevice | None) -> dict[str, str]:
    """Return what distinguishes the opened disk from every other; an empty text means that it is gone."""
    sequence = {DISKSEQ: note.sequence} if note and note.sequence else {}
    return {XEN_NODE: kernel.text(disk, XEN_NODE) or "", **sequence}


def replace_xen_volume(kernel: NvmeKernel, notes: OpenDevices, handle: str, disk: str) -> None:
    """Remove the notes of other volumes on this disk, which now is this volume's. Raises InUse."""
    for other, note in notes.others(handle).items():
        if note.disk != disk or not kernel.text(disk, XEN_NODE):
            continue
        if open_xen_disk(kernel, note) and kernel.in_use(kernel.dev / disk):
            raise InUse(
                f"{kernel.dev / disk} is in use as volume {other}, but EC2 attached volume {handle} under this name; "
                f"unpublish and unstage {other} first"
            )
        notes.remove(other)
