"""The device of a volume on this node: which it is, waiting for it, and the proof of it. No call to EC2.

An NVMe device carries its volume's id as serial number. Names (/dev/nvme1n1, links by id, the one that EC2 gave the
attachment) pass from volume to volume, and a link may be left of one that is gone: none of them is believed.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from csi_multi.contract import (
    Blank,
    Device,
    FailedPrecondition,
    InUse,
    NotFound,
    StorageError,
    Strings,
    Unavailable,
    missing,
)

from . import xen
from .blockdev import Kernel
from .marks import Mark, Marks
from .rows import VOLUME

NAMESPACE = re.compile(r"nvme\d+n\d+")  # not nvme0c1n1, which is one of several paths to a namespace
SERIAL = "device/serial"  # of the controller, or with several paths the subsystem; both have the same
MODEL = "device/model"
LOCAL = "Amazon EC2 NVMe Instance Storage"
STEP = 0.1  # seconds between two looks; udev, which would tell, is often not there for a container
APPEAR = 20.0  # seconds: the kernel shows a volume a little after EC2 calls it attached
RELEASE = 2.0  # seconds: btrfs lets go of its device after umount has returned
GROW = 5.0  # seconds the kernel may take to notice a new size


class Devices:
    def __init__(self, kernel: Kernel, *, appear: float = APPEAR) -> None:
        self._kernel = kernel
        self._marks = Marks(kernel.dev)
        self._appear = appear

    def open(self, handle: str, context: Strings, *, read_only: bool) -> Device:
        """Wait for the device, make it as read-only as asked, and note that it is open.

        `context` is what attach returned. Raises NotFound when the volume is not attached here, Unavailable when
        it does not show in time, FailedPrecondition without /dev, InUse when it is in use the other way.
        """
        _refuse_foreign(handle)
        attachment = context.get("device", "")
        disk = self._awaited(handle, attachment)
        path = self._node(disk)
        if (self._kernel.text(disk, "ro") == "1") != read_only:
            self._refuse_in_use(handle, path, f"in use {'read-write' if read_only else 'read-only'}")
            self._kernel.set_read_only(path, read_only)
        if not NAMESPACE.fullmatch(disk):
            xen.displace(self._kernel, self._marks, handle, disk)
        blank = Blank.ZEROED if context.get("blank") == Blank.ZEROED.value else Blank.NEVER
        mark = Mark(disk=disk, sequence=self._kernel.text(disk, xen.SEQUENCE) or "", blank=blank)
        self._marks.write(handle, mark)
        return self._shown(handle, disk, path, mark)

    def find(self, handle: str) -> Device | None:
        """Return the device if the volume is open: noted so, or in use although the note was lost.

        A volume that was detached while it was open, and attached again, is not open: what is still mounted
        shows the disk that is gone. Raises NotFound for what is no id of a volume, FailedPrecondition without /dev.
        """
        _refuse_foreign(handle)
        mark = self._marks.read(handle)
        disk = self._disk(handle, mark)
        if disk is None:
            return None
        if mark and not mark.means(self._kernel.text(disk, xen.SEQUENCE)):
            mark = None
        if mark is None and not self._used(disk):
            return None
        return self._shown(handle, disk, self._node(disk), mark)

    def close(self, handle: str) -> None:
        """Forget that it is open, and let the device take writes again. Raises NotFound as `find` does, InUse."""
        _refuse_foreign(handle)
        disk = self._disk(handle, self._marks.read(handle))
        path = self._kernel.node(disk) if disk else None
        if disk and path:
            self._refuse_in_use(handle, path, "in use")
            if self._kernel.text(disk, "ro") == "1":
                self._kernel.set_read_only(path, False)
        self._marks.remove(handle)

    def refresh(self, handle: str) -> None:
        """Make the device show the volume's new size. Raises NotFound, Unavailable when it does not in time."""
        _refuse_foreign(handle)
        disk = self._disk(handle, self._marks.read(handle))
        if disk is None:
            raise NotFound(f"volume {handle} shows no device on this node")
        path = self._node(disk)
        size = self._kernel.bytes_behind(disk, path)
        if size is None or self._size(disk) == size:
            return  # Xen tells the kernel by itself, and so do most NVMe controllers
        self._kernel.rescan(disk)
        ends = time.monotonic() + GROW
        while self._size(disk) != size:
            if time.monotonic() > ends:
                raise Unavailable(f"{path} shows {self._size(disk)} bytes, volume {handle} has {size}; try again")
            time.sleep(STEP)

    def local_disks(self) -> int:
        """Return how many NVMe disks of the instance itself (instance store) there are."""
        return sum((self._kernel.text(disk, MODEL) or "").strip() == LOCAL for disk in self._namespaces())

    def _awaited(self, handle: str, attachment: str) -> str:
        """Return the disk when the kernel shows it and its node."""
        ends = time.monotonic() + self._appear
        while True:
            disk = self._nvme(handle) or xen.named(self._kernel, attachment)
            if disk and self._kernel.node(disk):
                return disk
            if not attachment and not disk:
                raise NotFound(f"volume {handle} is not attached to this node")
            if time.monotonic() > ends:
                raise self._missing(handle, disk, attachment)
            time.sleep(STEP)

    def _missing(self, handle: str, disk: str | None, attachment: str) -> StorageError:
        if disk:
            return self._nodeless(disk)
        serials = [self._kernel.text(one, SERIAL) or "" for one in self._namespaces()]
        seen = ", ".join(sorted(one.strip() for one in serials if one.startswith("vol"))) or "none"
        return Unavailable(
            f"volume {handle}, attached as {attachment}, has not appeared on this node after {self._appear:g} s; EBS "
            f"volumes that its kernel shows: {seen}. If it stays away, compare the node's instance id with EC2's answer"
        )

    def _disk(self, handle: str, mark: Mark | None) -> str | None:
        return self._nvme(handle) or (xen.marked(self._kernel, mark) if mark else None)

    def _nvme(self, handle: str) -> str | None:
        """Return the NVMe disk whose serial number is the volume's id."""
        found = [disk for disk in self._namespaces() if self._serial(handle, disk)]
        if len(found) > 1:
            raise FailedPrecondition(
                f"{' and '.join(found)} both say that they are volume {handle}; detach it, and attach it again"
            )
        return found[0] if found else None

    def _namespaces(self) -> list[str]:
        return [disk for disk in self._kernel.disks() if NAMESPACE.fullmatch(disk)]

    def _serial(self, handle: str, disk: str) -> str:
        """Return the disk's serial number, padded with blanks as the kernel shows it, "" if it is not this volume's."""
        serial = self._kernel.text(disk, SERIAL) or ""
        return serial if serial.strip() == handle.replace("-", "") else ""

    def _used(self, disk: str) -> bool:
        path = self._kernel.node(disk)
        return path is not None and self._kernel.in_use(path)

    def _node(self, disk: str) -> Path:
        path = self._kernel.node(disk)
        if path is None:
            raise self._nodeless(disk)
        return path

    def _nodeless(self, disk: str) -> FailedPrecondition:
        return FailedPrecondition(
            f"{self._kernel.dev / disk} is no node of the disk {disk} ({self._kernel.text(disk, 'dev')}) that the "
            "kernel shows: the driver's container has a /dev of its own; mount the node's /dev (devtmpfs) there"
        )

    def _shown(self, handle: str, disk: str, path: Path, mark: Mark | None) -> Device:
        if NAMESPACE.fullmatch(disk):
            proof = {SERIAL: self._serial(handle, disk)}
        else:
            proof = xen.proof(self._kernel, disk, mark)
        if not all(proof.values()):
            raise Unavailable(f"{path} of volume {handle} has just vanished; try again")
        return Device(
            path=path,
            number=self._kernel.number(path),
            proof=proof,
            blank=mark.blank if mark else Blank.NEVER,
            read_only=self._kernel.text(disk, "ro") == "1",
        )

    def _refuse_in_use(self, handle: str, path: Path, how: str) -> None:
        ends = time.monotonic() + RELEASE
        while self._kernel.in_use(path):
            if time.monotonic() > ends or self._kernel.published(path):
                raise InUse(f"{path} of volume {handle} is {how} on this node; unpublish and unstage it first")
            time.sleep(STEP)

    def _size(self, disk: str) -> int:
        return int(self._kernel.text(disk, "size") or 0) * 512  # sysfs counts in 512-byte sectors


def _refuse_foreign(handle: str) -> None:
    """Raise NotFound for what is no id of a volume: it names files, too."""
    if not VOLUME.fullmatch(handle):
        raise missing("volume", handle)
