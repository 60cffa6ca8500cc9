"""The device of a volume on this node: wait for it, open, find, close and refresh it. No call to EC2.

Device names (/dev/nvme1n1, links by id, the name of the attachment) pass from volume to volume, and a link may remain
of a deleted volume. So no device is identified by its name alone; see device_identity.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from pathlib import Path

from csi_multi.contract import (
    Blank,
    Device,
    FailedPrecondition,
    InUse,
    NotFound,
    OpenRequest,
    StorageError,
    Strings,
    Unavailable,
    missing,
)
from csi_multi.host import release

from . import device_identity
from .blankness import Blankness
from .device_identity import SERIAL, NvmeKernel, OpenDevice, OpenDevices
from .resources import VOLUME_ID

NAMESPACE = re.compile(r"nvme\d+n\d+")  # not nvme0c1n1, which is one of several paths to a disk
MODEL = "device/model"
INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
POLL_SECONDS = 0.1  # between two reads of /sys; udev events often do not reach a container
APPEAR_SECONDS = 20.0  # the kernel shows a volume a little after EC2 calls it attached
GROW_SECONDS = 5.0  # the kernel may take so long to notice a new size


class DeviceManager:
    def __init__(self, kernel: NvmeKernel, *, appear: float = APPEAR_SECONDS) -> None:
        self._kernel = kernel
        self._notes = OpenDevices(kernel.dev)
        self.blankness = Blankness(kernel)
        self._appear = appear

    def open(self, request: OpenRequest) -> Device:
        """Open read-only if the request says so, or the attachment is read-only. Raises as `open` does."""
        context = request.publish_context
        read_only = request.read_only or context.get("readOnly") == "true"
        return self.open_attached(request.handle, context, read_only=read_only, block=request.block)

    def open_attached(self, handle: str, context: Strings, *, read_only: bool, block: bool = False) -> Device:
        """Wait for the device, make it read-only or writable, and note that it is open.

        `context` is what attach returned. Raises NotFound when the volume is not attached here, Unavailable when
        it does not appear in time or has to be read first, FailedPrecondition without the node's /dev, InUse when the
        mode cannot be changed.
        """
        _refuse_malformed(handle)
        attachment = context.get("device", "")
        disk = self._wait_disk(handle, attachment)
        path = self._device_node(disk)
        if (self._kernel.text(disk, "ro") == "1") != read_only:
            self._refuse_in_use(handle, path, f"in use {'read-write' if read_only else 'read-only'}")
            self._kernel.set_read_only(path, read_only)
        if not NAMESPACE.fullmatch(disk):
            device_identity.replace_xen_volume(self._kernel, self._notes, handle, disk)
        blank = self.blankness.find(handle, disk, path, context, read=not (read_only or block))
        opened = OpenDevice(disk=disk, sequence=self._kernel.text(disk, device_identity.DISKSEQ) or "", blank=blank)
        self._notes.write(handle, opened)
        return self._device(handle, disk, path, opened)

    def find(self, handle: str) -> Device | None:
        """Return the device if the volume is open: by its note, or because it is in use although the note was lost.

        A volume that was detached while it was open, and attached again, is not open: its mounts belong to the disk
        that is gone. Raises NotFound for a handle that is no volume id, FailedPrecondition without the node's /dev.
        """
        _refuse_malformed(handle)
        opened = self._notes.read(handle)
        disk = self._disk(handle, opened)
        if disk is None:
            return None
        if opened and not opened.is_disk(self._kernel.text(disk, device_identity.DISKSEQ)):
            opened = None
        if opened is None and not self._in_use(disk):
            return None
        return self._device(handle, disk, self._device_node(disk), opened)

    def close(self, handle: str) -> None:
        """Make the device writable again, and remove the note. Raises NotFound as `find` does, InUse."""
        _refuse_malformed(handle)
        disk = self._disk(handle, self._notes.read(handle))
        path = self._kernel.node(disk) if disk else None
        if disk and path:
            self._refuse_in_use(handle, path, "in use")
            if self._kernel.text(disk, "ro") == "1":
                self._kernel.set_read_only(path, False)
        self._notes.remove(handle)

    def refresh(self, handle: str) -> None:
        """Make the device show the volume's new size. Raises NotFound, Unavailable when it does not in time."""
        _refuse_malformed(handle)
        disk = self._disk(handle, self._notes.read(handle))
        if disk is None:
            raise NotFound(f"volume {handle} has no device on this node")
        path = self._device_node(disk)
        size = self._kernel.bytes_behind(disk, path)
        if size is None or self._size(disk) == size:
            return  # the kernel has noticed: Xen and most NVMe controllers notify it
        self._kernel.rescan(disk)
        end = time.monotonic() + GROW_SECONDS
        while self._size(disk) != size:
            if time.monotonic() > end:
                raise Unavailable(f"{path} shows {self._size(disk)} bytes, volume {handle} has {size}; try again")
            time.sleep(POLL_SECONDS)

    def log_pages(self, handles: Collection[str], page: int) -> dict[str, bytes]:
        """Return a log page of the NVMe disk of each of these volumes that has one."""
        wanted = {handle.replace("-", ""): handle for handle in handles}
        found = {}
        for disk in self._namespaces():
            handle = wanted.get((self._kernel.text(disk, SERIAL) or "").strip())
            path = self._kernel.node(disk) if handle else None
            if handle and path and (data := self._kernel.log_page(disk, path, page)) is not None:
                found[handle] = data
        return found

    def local_disks(self) -> int:
        """Return the number of local NVMe disks of the instance (instance store)."""
        return sum((self._kernel.text(disk, MODEL) or "").strip() == INSTANCE_STORE for disk in self._namespaces())

    def _wait_disk(self, handle: str, attachment: str) -> str:
        """Return the disk once the kernel shows it and its device node."""
        end = time.monotonic() + self._appear
        while True:
            disk = self._nvme_disk(handle) or device_identity.find_xen_disk(self._kernel, attachment)
            if disk and self._kernel.node(disk):
                return disk
            if not attachment and not disk:
                raise NotFound(f"volume {handle} is not attached to this node")
            if time.monotonic() > end:
                raise self._not_appeared(handle, disk, attachment)
            time.sleep(POLL_SECONDS)

    def _not_appeared(self, handle: str, disk: str | None, attachment: str) -> StorageError:
        if disk:
            return self._no_node(disk)
        serials = [self._kernel.text(one, SERIAL) or "" for one in self._namespaces()]
        seen = ", ".join(sorted(one.strip() for one in serials if one.startswith("vol"))) or "none"
        return Unavailable(
            f"volume {handle}, attached as {attachment}, has not appeared on this node after {self._appear:g} s; EBS "
            f"volumes that the kernel shows: {seen}; if it never appears, compare the node's instance id with EC2's "
            "attachment of the volume"
        )

    def _disk(self, handle: str, opened: OpenDevice | None) -> str | None:
        return self._nvme_disk(handle) or (device_identity.open_xen_disk(self._kernel, opened) if opened else None)

    def _nvme_disk(self, handle: str) -> str | None:
        """Return the NVMe disk whose serial number is the volume's id."""
        found = [disk for disk in self._namespaces() if self._serial(handle, disk)]
        if len(found) > 1:
            raise FailedPrecondition(
                f"{' and '.join(found)} both have the serial number of volume {handle}; detach it, and attach it again"
            )
        return found[0] if found else None

    def _namespaces(self) -> list[str]:
        return [disk for disk in self._kernel.disks() if NAMESPACE.fullmatch(disk)]

    def _serial(self, handle: str, disk: str) -> str:
        """Return the disk's serial number as the kernel pads it; "" when it is that of another volume."""
        serial = self._kernel.text(disk, SERIAL) or ""
        return serial if serial.strip() == handle.replace("-", "") else ""

    def _in_use(self, disk: str) -> bool:
        path = self._kernel.node(disk)
        return path is not None and self._kernel.in_use(path)

    def _device_node(self, disk: str) -> Path:
        path = self._kernel.node(disk)
        if path is None:
            raise self._no_node(disk)
        return path

    def _no_node(self, disk: str) -> FailedPrecondition:
        return FailedPrecondition(
            f"{self._kernel.dev / disk} is not the device node of disk {disk} ({self._kernel.text(disk, 'dev')}): the "
            "driver's container has its own /dev; mount the node's /dev (devtmpfs) into the container"
        )

    def _device(self, handle: str, disk: str, path: Path, opened: OpenDevice | None) -> Device:
        if NAMESPACE.fullmatch(disk):
            proof = {SERIAL: self._serial(handle, disk)}
        else:
            proof = device_identity.xen_proof(self._kernel, disk, opened)
        if not all(proof.values()):
            raise Unavailable(f"device {path} of volume {handle} disappeared; try again")
        return Device(
            path=path,
            number=self._kernel.number(path),
            proof=proof,
            blank=self.blankness.current(handle, opened.blank) if opened else Blank.NEVER,
            read_only=self._kernel.text(disk, "ro") == "1",
        )

    def _refuse_in_use(self, handle: str, path: Path, mode: str) -> None:
        if release.stays_in_use(lambda: self._kernel.in_use(path), lambda: self._kernel.is_node_bound(path)):
            raise InUse(f"{path} of volume {handle} is {mode} on this node; unpublish and unstage it first")

    def _size(self, disk: str) -> int:
        return int(self._kernel.text(disk, "size") or 0) * 512  # sysfs counts in 512-byte sectors


def _refuse_malformed(handle: str) -> None:
    """Raise NotFound for a handle that is no volume id, because the handle becomes a file name."""
    if not VOLUME_ID.fullmatch(handle):
        raise missing("volume", handle)
