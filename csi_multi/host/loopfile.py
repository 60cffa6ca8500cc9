"""Loop devices for backends whose volumes are files: at most one device per file, with the requested properties.

loopdev.py has the operations of the kernel; this module makes them safe to repeat and leaves no device behind.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ..contract.errors import InUse, StorageError, Unavailable
from ..contract.machine import Host
from ..contract.model import Blank, Device
from . import exclusive, loopdev, mounts, release, sysfs
from .mounts import MountPoint

log = logging.getLogger(__name__)


class LoopDevices:
    """The loop devices of the files of one backend.

    `name_parts`: how many last components of a file's path are the same wherever the backend's directory is mounted,
    and distinguish its files (loopdev.find). `direct_io`: as for loopdev.attach.
    """

    def __init__(self, host: Host, *, name_parts: int = 1, direct_io: bool | None = None) -> None:
        self._host = host
        self._direct_io = direct_io
        self._name_parts = name_parts

    def open(self, image: Path, *, sector_size: int = 512, read_only: bool = False) -> Path:
        """Return the file's device, and attach it first if there is none. Raises InUse."""
        found = self._bound(image)
        used = [device for device in found if in_use(device)]
        if len(used) > 1:
            names = " and ".join(str(device) for device in used)
            raise InUse(f"{image} is in use through {names} at the same time; stop what uses one of them")
        suitable = [
            device
            for device in found
            if has_properties(device, image, sector_size, read_only) and (device in used or not autoclears(device))
        ]
        if used and used[0] not in suitable:
            raise InUse(
                f"{used[0]} is in use with other properties than requested (read-only, sector size, or its file was "
                f"deleted); unpublish and unstage the volume of {image} first"
            )
        keep = next(iter(used or suitable), None)
        for device in found:
            if device != keep:
                self._detach(device)
        if keep is None:
            return self._attach(image, sector_size, read_only)
        if _size(keep) != image.stat().st_size:  # the file has grown since the device was attached
            loopdev.refresh(self._host, keep)
            _refuse_other_size(keep, image)
        if not self._keeps_direct_io(image) and uses_direct_io(keep):  # attached by hand, or by an earlier version
            loopdev.give_up_direct_io(self._host, keep)
        return keep

    def find(self, image: Path) -> Path | None:
        """Return the file's device, if there is one.

        Of several, it is the one in use: the attach command of a killed process may have ended late. The device of a
        file that was removed from this path counts, too, because it must be unmounted and closed as well.
        """
        found = self._bound(image)
        if len(found) < 2:
            return next(iter(found), None)
        return max(found, key=lambda one: (in_use(one), loopdev.is_bound_to(one, image)))

    def close(self, image: Path) -> None:
        """Detach all devices of the image. Raises InUse."""
        for device in self._bound(image):
            self._detach(device)

    def refresh(self, image: Path) -> None:
        """Let the devices of the image take its size."""
        for device in self._bound(image):
            loopdev.refresh(self._host, device)
            _refuse_other_size(device, image)

    def _bound(self, image: Path) -> list[Path]:
        return loopdev.find(image, name_parts=self._name_parts)

    def _attach(self, image: Path, sector_size: int, read_only: bool) -> Path:
        try:
            device = loopdev.attach(
                self._host,
                image,
                read_only=read_only,
                sector_size=sector_size,
                direct_io=self._direct_io,
                name_parts=self._name_parts,
            )
            if not has_properties(device, image, sector_size, read_only):
                raise Unavailable(f"{device} was attached to {image} with other properties than requested; try again")
            _refuse_other_size(device, image)
        except (StorageError, OSError):
            self.close(image)  # also a device that a command has attached although it failed
            raise
        if self._direct_io is not False and not uses_direct_io(device):
            log.warning("%s uses no direct I/O on %s, so its data is cached twice", device, image)
        return device

    def _keeps_direct_io(self, image: Path) -> bool:
        return loopdev.keeps_direct_io(image) if self._direct_io is None else self._direct_io

    def _detach(self, device: Path) -> None:
        backing = _backing(device)
        if release.stays_in_use(lambda: in_use(device), lambda: bool(mounted(device))):
            raise InUse(f"{device}, attached to {backing}, is in use; unmount it first")
        loopdev.detach(self._host, device)


def device_of(path: Path, blank: Blank) -> Device:
    """Return a loop device as open_device and find_device return it."""
    number = sysfs.number_of(path)
    return Device(
        path=path,
        number=number,
        proof={"loop/backing_file": sysfs.attribute(number, "loop/backing_file") or ""},
        blank=blank,
        read_only=sysfs.read_only(number),
    )


def has_properties(device: Path, image: Path, sector_size: int, read_only: bool) -> bool:
    """Whether an attached device is bound to this file, all of it, with these properties."""
    expected = {
        "loop/offset": "0",
        "loop/sizelimit": "0",
        "queue/logical_block_size": str(sector_size),
        "ro": str(int(read_only)),
    }
    number = sysfs.number_of(device)
    return all(sysfs.attribute(number, name) == text for name, text in expected.items()) and loopdev.is_bound_to(
        device, image
    )


def uses_direct_io(device: Path) -> bool:
    return sysfs.attribute(sysfs.number_of(device), "loop/dio") == "1"


def autoclears(device: Path) -> bool:
    """Whether the kernel frees the device at its last close."""
    return sysfs.attribute(sysfs.number_of(device), "loop/autoclear") == "1"


def in_use(device: Path) -> bool:
    """Whether the device is mounted in any mount namespace, used by another device, or published raw."""
    if loopdev.above(device):
        return True
    if any(mount.fs_type == "devtmpfs" and mount.root == f"/{device.name}" for mount in mounts.table()):
        return True
    return exclusive.is_held(device)


def mounted(device: Path) -> list[MountPoint]:
    """Return the mounts, in this mount namespace, of the filesystem on the device or on a device above it.

    The device may be a partition. Raises DeviceGone, and OSError.
    """
    numbers = _device_and_holders(device)
    return [mount for mount in mounts.table() if mounts.filesystem_number(mount) in numbers]


def _device_and_holders(device: Path) -> set[str]:
    """Return the numbers of the device and of the devices above it: dm-crypt, a read-only loop device."""
    number = sysfs.number_of(device)
    try:
        holders = [Path("/dev") / name for name in os.listdir(sysfs.BLOCK / number / "holders")]
    except FileNotFoundError:
        raise sysfs.DeviceGone(f"device {device} does not exist any more") from None
    return {number}.union(*(_device_and_holders(one) for one in holders + loopdev.above(device)))


def _backing(device: Path) -> str | None:
    return sysfs.attribute(sysfs.number_of(device), "loop/backing_file")


def _size(device: Path) -> int:
    return sysfs.size_of(sysfs.number_of(device))


def _refuse_other_size(device: Path, image: Path) -> None:
    found, expected = _size(device), image.stat().st_size
    if found != expected:
        raise Unavailable(f"{device} has {found} bytes, but {image} has {expected}; try again")
