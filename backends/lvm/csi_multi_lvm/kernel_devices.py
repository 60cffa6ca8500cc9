"""The kernel's devices of logical volumes, as /sys and /dev show them; no lvm command runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Host, InUse, Unavailable
from csi_multi.host import exclusive, mounts, sysfs
from csi_multi.host.blockdev import BlockDevices

SYS_BLOCK = Path("/sys/block")
DEV = Path("/dev")
WRITTEN, IN_FLIGHT, DISCARDED = 6, 8, 13  # fields of a device's stat (Documentation/admin-guide/iostats.rst)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveDevice:
    """The kernel's device of an active logical volume."""

    name: str  # dm/name
    number: str  # major:minor
    uuid: str  # dm/uuid

    @property
    def size(self) -> int:
        return sysfs.size_of(self.number)

    @property
    def read_only(self) -> bool:
        return sysfs.read_only(self.number)

    @property
    def suspended(self) -> bool:
        return sysfs.attribute(self.number, "dm/suspended") == "1"

    @property
    def sequence(self) -> str:
        """A number that no other device has until the next boot, also not a later one of this volume; "": unknown."""
        return sysfs.disk_sequence(self.number)

    def sectors_written(self) -> int | None:
        """Return the sectors that were written or discarded since the device appeared; None while I/O is under way."""
        fields = (sysfs.attribute(self.number, "stat") or "").split()
        if len(fields) <= DISCARDED or fields[IN_FLIGHT] != "0":
            return None
        return int(fields[WRITTEN]) + int(fields[DISCARDED])


def find_device(name: str) -> ActiveDevice | None:
    """Return the device of this name, None when no active logical volume has it."""
    number: str | None = sysfs.find_number(DEV / "mapper" / name)
    if not number or sysfs.attribute(number, "dm/name") != name:
        number = _search(name)
    uuid = sysfs.attribute(number, "dm/uuid") if number else None
    return ActiveDevice(name=name, number=number, uuid=uuid) if number and uuid else None


def suspended_devices(*names: str) -> list[str]:
    """Return the names of the suspended devices of logical volumes, underlying ones first."""
    parts = tuple(f"{name}{mark}" for name in names for mark in "-_")  # -real, -cow, -tpool, _rimage_0, _tdata
    found = []
    for entry in SYS_BLOCK.glob("dm-*"):
        try:
            one = (entry / "dm/name").read_text().strip()
            if (one in names or one.startswith(parts)) and (entry / "dm/suspended").read_text().strip() == "1":
                found.append(
                    (_height(entry), -len(one), one)
                )  # by length: a table that is not loaded yet shows nothing
        except OSError:
            continue  # it has disappeared
    return [one for _height, _length, one in sorted(found)]


def _height(entry: Path) -> int:
    """Return how many devices are stacked below this one."""
    try:
        below = os.listdir(entry / "slaves")
    except OSError:  # a partition
        return 0
    return max((1 + _height(SYS_BLOCK / one) for one in below), default=0)


def device_node(host: Host, device: ActiveDevice) -> Path:
    """Return a device node; dmsetup creates one if neither udev nor the kernel did. Raises Unavailable."""
    mapper = DEV / "mapper" / device.name
    for _ in range(2):
        for path in (mapper, DEV / f"dm-{device.number.partition(':')[2]}"):
            if sysfs.find_number(path) == device.number:
                return path
        host.run("dmsetup", "mknodes", device.name)
    raise Unavailable(f"device {device.name} has no device node; mount the node's /dev into this container")


def set_read_only(path: Path, device: ActiveDevice, read_only: bool) -> None:
    """Make the device refuse or accept writes. Raises InUse when it is in use the other way."""
    if device.read_only == read_only:
        return
    if in_use(path, device.number):
        raise InUse(
            f"{path} is in use {'read-write' if read_only else 'read-only'}; unpublish and unstage the volume first"
        )
    BlockDevices().set_read_only(path, read_only)


def in_use(path: Path, number: str) -> bool:
    """Return whether it is mounted in any mount namespace, used by another device, or published as raw block device."""
    return mounts.is_node_bound(number) or exclusive.is_held(path)


def _search(name: str) -> str | None:
    for entry in SYS_BLOCK.glob("dm-*"):
        try:
            if (entry / "dm" / "name").read_text().removesuffix("\n") == name:
                return (entry / "dev").read_text().strip()
        except OSError:
            continue  # it has disappeared
    return None
