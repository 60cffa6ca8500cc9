"""Devices of logical volumes on this node, as the kernel shows them: no lvm command is needed to look."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Host, InUse, Unavailable
from csi_multi.host import mounts, sysfs

SYS_BLOCK = Path("/sys/block")
DEV = Path("/dev")
BLKROSET = 0x125D  # linux/fs.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An active logical volume."""

    name: str  # dm/name
    number: str
    uuid: str  # dm/uuid

    @property
    def size(self) -> int:
        return sysfs.size_of(self.number)

    @property
    def read_only(self) -> bool:
        return sysfs.read_only(self.number)


def find(name: str) -> Shown | None:
    """Return the device of this name, None when it is not active here."""
    number: str | None = sysfs.find_number(DEV / "mapper" / name)
    if not number or sysfs.attribute(number, "dm/name") != name:
        number = _searched(name)
    uuid = sysfs.attribute(number, "dm/uuid") if number else None
    return Shown(name=name, number=number, uuid=uuid) if number and uuid else None


def suspended(name: str) -> list[str]:
    """Return which of the devices of a logical volume are suspended, lower ones first."""
    found = []
    for entry in SYS_BLOCK.glob("dm-*/dm"):
        try:
            one = (entry / "name").read_text().strip()
            if one.startswith(name) and (entry / "suspended").read_text().strip() == "1":
                found.append(one)
        except OSError:
            continue  # gone meanwhile
    parts = (f"{name}-", f"{name}_")  # -real and -cow, _rimage_0 and _rmeta_0
    return sorted((one for one in found if one == name or one.startswith(parts)), key=len, reverse=True)


def path_of(host: Host, shown: Shown) -> Path:
    """Return a node of the device; made now where neither udev nor the kernel did. Raises Unavailable."""
    mapper = DEV / "mapper" / shown.name
    for _ in range(2):
        for path in (mapper, DEV / f"dm-{shown.number.partition(':')[2]}"):
            if sysfs.find_number(path) == shown.number:
                return path
        host.run("dmsetup", "mknodes", shown.name)
    raise Unavailable(f"there is no device node for {shown.name}; does this container see the node's /dev?")


def set_read_only(path: Path, shown: Shown, wanted: bool) -> None:
    """Make the device refuse writes, or take them. Raises InUse when it is in use the other way."""
    if shown.read_only == wanted:
        return
    if in_use(path, shown.number):
        raise InUse(
            f"{path} is in use {'read-write' if wanted else 'read-only'}; unpublish and unstage the volume first"
        )
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, BLKROSET, struct.pack("i", wanted))
    finally:
        os.close(descriptor)


def in_use(path: Path, number: str) -> bool:
    """Whether the device is mounted, in any mount namespace, below another device, or published raw."""
    if published(number):
        return True
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def published(number: str) -> bool:
    """Whether a node of the device is bound anywhere: the kernel does not count that as use."""
    return mounts.node_bound(number)


def _searched(name: str) -> str | None:
    for entry in SYS_BLOCK.glob("dm-*"):
        try:
            if (entry / "dm" / "name").read_text().removesuffix("\n") == name:
                return (entry / "dev").read_text().strip()
        except OSError:
            continue  # gone meanwhile
    return None


def busy(shown: Shown) -> InUse:
    return InUse(f"device {shown.name} is in use on this node; unpublish and unstage the volume first")
