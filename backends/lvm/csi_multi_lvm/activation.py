"""When a logical volume is active, that is, has a device in the kernel: while it is open, or while it is read.

What the kernel shows is read from /sys and /dev, without an lvm command.

Activating a thick snapshot also activates its origin, and that volume may be opened while its snapshot is read. So a
volume that is activated only to read its snapshot gets the tag csi.reading, unless it is active at that moment. When
the snapshot was read, or when a process starts, the volume is deactivated if it has the tag; lvm checks both under its
lock. The tag is removed only after the volume is activated to be opened: another process that has set it, or found it,
may be about to activate the volume to read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import FailedPrecondition, Host, InUse, Unavailable
from csi_multi.host import exclusive, mounts, release, sysfs
from csi_multi.host.blockdev import BlockDevices, open_descriptor, os_errors_as_unavailable

from . import labels
from .client import Client
from .errors import CommandRefused
from .labels import device_name
from .report import LogicalVolume

log = logging.getLogger(__name__)

SYS_BLOCK = Path("/sys/block")
DEV = Path("/dev")

INACTIVE_CONDITION = 'lv_active=""'
READING_CONDITION = f'lv_tags={{"{labels.READING}"}}'
POOL_FAILED_CONDITION = 'lv_health_status="failed"'  # as the kernel reports it
ATTEMPTS = 3  # to activate a volume whose snapshots are being read
SUSPENSION_SECONDS = 10.0  # seconds: no running command suspends a device for longer


class Activation:
    """Activates and deactivates the logical volumes of one group on this node."""

    def __init__(self, host: Host, client: Client, group: str) -> None:
        self._host = host
        self._client = client
        self._group = group

    def device(self, name: str) -> ActiveDevice | None:
        """Return the device of a logical volume, None while it is not active. Runs no lvm command."""
        return find_device(device_name(self._group, name))

    def path(self, device: ActiveDevice) -> Path:
        """Return a node of the device. Raises Unavailable."""
        return device_node(self._host, device)

    def mapped_sectors(self, device: ActiveDevice) -> int | None:
        """Return the sectors of a thin volume that were ever written; None for another one, or if unknown.

        lvs shows a rounded percentage, which is 0.00 for the first blocks of a large volume. The kernel's status has
        the number, or "Fail" and "Error" (its Documentation/admin-guide/device-mapper/thin-provisioning.rst).
        """
        if self._status(device)[0] != "thin":
            return None
        path = self.path(device)
        with os_errors_as_unavailable(path), open_descriptor(path) as descriptor:
            os.fsync(descriptor)  # what another program wrote may be in the page cache only
        _target, *status = self._status(device)
        return int(status[0]) if status and status[0].isdigit() else None

    def _status(self, device: ActiveDevice) -> list[str]:
        """Return the target of the device's first segment, and what the kernel says of it."""
        return self._host.run("dmsetup", "status", device.name).stdout.split()[2:] or [""]

    def activate(self, volume: LogicalVolume) -> ActiveDevice:
        """Activate a volume that is opened, and resume it if a killed command left it suspended.

        Raises FailedPrecondition when disks of it are missing, Unavailable.
        """
        self.resume(volume.name, volume.pool)
        for _ in range(ATTEMPTS):
            if not volume.active or self.device(volume.name) is None:
                self._activate(volume.name, volume)
            if not self._is_tagged(volume):
                break
            self._client.change_tags(volume.name, remove=[labels.READING])
            if self.device(volume.name):  # otherwise a read ended before the tag was removed
                break
        return self._verified_device(volume)

    def _is_tagged(self, volume: LogicalVolume) -> bool:
        """Return whether an active volume has the tag of a read, which it may have got after `volume` was reported."""
        if volume.thin or labels.READING in volume.tags:
            return labels.READING in volume.tags
        if find_device(f"{device_name(self._group, volume.name)}-real") is None:  # it has no thick snapshots
            return False
        return labels.READING in self._client.get(volume.name).tags

    def deactivate(self, name: str, condition: str = "") -> None:
        """Deactivate a volume if it is active and the condition holds at that moment. Raises InUse, Unavailable."""
        device = self.device(name)
        if device is None:
            return
        release.stays_in_use(
            lambda: in_use(self.path(device), device.number), lambda: mounts.is_node_bound(device.number)
        )
        try:
            if mounts.is_node_bound(device.number):
                raise InUse(f"device {device.name} is in use on this node; unpublish and unstage the volume first")
            self._client.deactivate(name, condition)
        except CommandRefused as error:
            if self.device(name):
                raise error.contract_error() from None

    def resume(self, name: str, pool: str = "") -> None:
        """Resume a volume, or a pool, that a killed lvm command left suspended, so that its users do not hang.

        A running command suspends a device only for a moment, which is waited for. Underlying devices are resumed
        first, so those of the thin pool, too: the kernel hangs when it resumes a device above one that is still
        suspended.
        """
        deadline = time.monotonic() + SUSPENSION_SECONDS
        names = [device_name(self._group, one) for one in (pool, name) if one]
        while suspended := suspended_devices(*names):
            if time.monotonic() > deadline:
                log.warning("logical volume %s was left suspended by a killed command; resuming it", name)
                for device in suspended:  # its inactive table belongs to a change that was not completed
                    self._host.run("dmsetup", "clear", "--noudevsync", device)
                for device in suspended:
                    self._host.run("dmsetup", "resume", "--noudevsync", device)
                self._client.refresh(name)
                return
            time.sleep(0.1)

    @contextmanager
    def reading(self, volume: LogicalVolume) -> Iterator[Path]:
        """Activate a snapshot or an incomplete copy for the block, and return its device node.

        The device is held open: lvm neither deactivates nor removes a volume that is open.
        """
        base = volume.origin if volume.thick_snapshot else volume.name
        if self.device(base) is None:
            if base != volume.name:
                self._client.change_tags(base, add=[labels.READING], condition=INACTIVE_CONDITION)
            self._activate(base, volume)
        try:
            with ExitStack() as held:
                path = self.path(self._verified_device(volume))
                with os_errors_as_unavailable(path):
                    held.enter_context(open_descriptor(path))
                yield path
        finally:
            self.release(base, tagged=base != volume.name)

    def release(self, base: str, *, tagged: bool) -> None:
        """Deactivate what was active only to be read, unless another process reads it, or has it open or published."""
        device = self.device(base)
        if device is None or mounts.is_node_bound(device.number):
            return
        with suppress(CommandRefused):
            self._client.deactivate(base, READING_CONDITION if tagged else "")

    def _activate(self, name: str, volume: LogicalVolume) -> None:
        """Activate a volume, given by name, or the origin of a snapshot.

        After its disk failed, a pool remains failed in the kernel until it is reactivated, even if the disk works
        again. It is reactivated here; the kernel refuses that while a volume of the pool is in use.
        """
        try:
            self._client.activate(name)
        except CommandRefused as error:
            pool = self._client.find(volume.pool).get(volume.pool) if volume.pool else None
            if pool and pool.health == "failed":
                log.warning("thin pool %s has failed in the kernel; reactivating it", pool.name)
                self._client.deactivate(volume.pool, POOL_FAILED_CONDITION)
                self._client.activate(volume.pool)
                self._client.activate(name)
                return
            if "partial" in volume.health:
                raise FailedPrecondition(
                    f"{error}; disks of the volume are missing: bring them back, or see Recovery in docs/lvm.md"
                ) from None
            raise

    def _verified_device(self, volume: LogicalVolume) -> ActiveDevice:
        """Return the device of an activated volume. Raises Unavailable when it is absent or another volume's."""
        device = self.device(volume.name)
        if device is None:
            raise Unavailable(
                f"logical volume {volume.name} was activated, but the kernel has no device for it; check the kernel "
                "log, and try again"
            )
        if device.uuid != volume.uuid:
            raise Unavailable(
                f"device {device.name} has UUID {device.uuid}, but the volume has {volume.uuid}: it was "
                "replaced; try again"
            )
        return device


# The kernel's devices


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
