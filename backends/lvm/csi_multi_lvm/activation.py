"""When a logical volume is active, that is, has a device in the kernel: while it is open, or while it is read.

What the kernel shows is read from /sys and /dev (kernel_devices.py), without an lvm command.

A volume is activated before lvm is asked about it, and its device is held open meanwhile. So one report is the look at
the volume and the proof that nothing has changed before it is used: lvm neither deactivates nor removes what is open.

Activating a thick snapshot also activates its origin, and that volume may be opened while its snapshot is read. So a
volume that is activated only to read its snapshot gets the tag csi.reading, unless it is active at that moment, and is
activated only if it has the tag at that moment: who opens the volume removes the tag, and may have closed it again.
When the snapshot was read, or when a process starts, the volume is deactivated if it has the tag; lvm checks all of
this under its lock. The tag is removed only while the device is held open to be used: another process that has set it,
or found it, may be about to activate the volume to read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from csi_multi.contract import FailedPrecondition, Host, InUse, NotFound, Unavailable
from csi_multi.host import mounts, release
from csi_multi.host.blockdev import open_descriptor, os_errors_as_unavailable

from . import block_io, kernel_devices, labels
from .client import Client
from .errors import CommandRefused
from .kernel_devices import ActiveDevice
from .labels import device_name
from .report import LogicalVolume

log = logging.getLogger(__name__)

INACTIVE_CONDITION = 'lv_active=""'
READING_CONDITION = f'lv_tags={{"{labels.READING}"}}'
POOL_FAILED_CONDITION = 'lv_health_status="failed"'  # as the kernel reports it
ATTEMPTS = 3  # to activate a volume that other processes activate and deactivate to read its snapshots
SUSPENSION_SECONDS = 10.0  # seconds: no running command suspends a device for longer

Look = Callable[[], LogicalVolume]  # asks lvm for a volume; raises NotFound, FailedPrecondition


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVolume:
    """A volume whose device is held open, as lvm reports it now."""

    volume: LogicalVolume
    device: ActiveDevice
    path: Path
    alone: bool  # nothing else on this node uses the device


class Activation:
    """Activates and deactivates the logical volumes of one group on this node."""

    def __init__(self, host: Host, client: Client, group: str) -> None:
        self._host = host
        self._client = client
        self._group = group
        self._pool_lock = threading.Lock()
        self._pool_users = 0  # blocks for which the thin pool is kept active
        self._pool_activated = False  # for them

    def device(self, name: str) -> ActiveDevice | None:
        """Return the device of a logical volume, None while it is not active. Runs no lvm command."""
        return kernel_devices.find_device(device_name(self._group, name))

    def part(self, name: str, suffix: str) -> ActiveDevice | None:
        """Return a device below that of a logical volume, by lvm's suffix, None while it is not active."""
        return kernel_devices.find_device(f"{device_name(self._group, name)}-{suffix}")

    def path(self, device: ActiveDevice) -> Path:
        """Return a node of the device. Raises Unavailable."""
        return kernel_devices.device_node(self._host, device)

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

    @contextmanager
    def held(self, name: str, pool: str, condition: str, look: Look) -> Iterator[HeldVolume]:
        """Activate a volume that is opened, if lvm finds that the condition holds, and hold its device open.

        A volume, or its pool, that a killed command left suspended is resumed. Raises FailedPrecondition when disks of
        it are missing, Unavailable, and what `look` raises.
        """
        if self._suspended(name, pool):
            volume = look()  # the driver touches only volumes of its own
            self.resume(name, volume.pool)
        with ExitStack() as held:
            activated, device, path, alone = self._hold(held, name, condition, look)
            try:
                volume = look()
            except (NotFound, FailedPrecondition):
                held.close()
                if activated:
                    with suppress(CommandRefused):
                        self._client.deactivate(name)
                raise
            _verify(device, volume)
            if labels.READING in volume.tags:
                self._client.change_tags(name, remove=[labels.READING])
                volume = replace(volume, tags=volume.tags - {labels.READING})
            yield HeldVolume(volume=volume, device=device, path=path, alone=alone)

    def _hold(self, held: ExitStack, name: str, condition: str, look: Look) -> tuple[bool, ActiveDevice, Path, bool]:
        """Activate a volume unless it is active, and hold its device open.

        Return whether it was activated, the device, its node, and whether nothing else uses it.
        """
        activated = False
        for attempt in range(ATTEMPTS):
            device = self.device(name)
            if device is None or not device.size:  # without a size: a killed command has not loaded its table
                self._activate(name, condition, look)
                activated, device = True, self.device(name)
            if device is None:
                look()  # raises if the condition does not hold
                raise _no_device(name)
            try:
                path = self.path(device)
                return activated, device, path, held.enter_context(block_io.held(path))
            except Unavailable:
                if attempt == ATTEMPTS - 1 or self.device(name):
                    raise
        raise _no_device(name)  # a process that read a snapshot of it deactivated it, each time

    def deactivate(self, name: str, condition: str = "") -> None:
        """Deactivate a volume if it is active and the condition holds at that moment. Raises InUse, Unavailable."""
        device = self.device(name)
        if device is None:
            return
        release.stays_in_use(
            lambda: kernel_devices.in_use(self.path(device), device.number), lambda: mounts.is_node_bound(device.number)
        )
        try:
            if mounts.is_node_bound(device.number):
                raise InUse(f"device {device.name} is in use on this node; unpublish and unstage the volume first")
            self._client.deactivate(name, condition)
        except CommandRefused as error:
            if self.device(name):
                raise error.contract_error() from None

    def resume(self, name: str, pool: str = "", *, seen: float | None = None) -> None:
        """Resume a volume, or a pool, that a killed lvm command left suspended, so that its users do not hang.

        A running command suspends a device only for a moment, which is waited for, counted from `seen` if it was seen
        suspended before (time.monotonic). Underlying devices are resumed first, so those of the thin pool, too: the
        kernel hangs when it resumes a device above one that is still suspended.
        """
        deadline = (time.monotonic() if seen is None else seen) + SUSPENSION_SECONDS
        while suspended := self._suspended(name, pool):
            if time.monotonic() > deadline:
                log.warning("logical volume %s was left suspended by a killed command; resuming it", name)
                for device in suspended:  # its inactive table belongs to a change that was not completed
                    self._host.run("dmsetup", "clear", "--noudevsync", device)
                for device in suspended:
                    self._host.run("dmsetup", "resume", "--noudevsync", device)
                self._client.refresh(name)
                return
            time.sleep(0.1)

    def _suspended(self, name: str, pool: str) -> list[str]:
        return kernel_devices.suspended_devices(*(device_name(self._group, one) for one in (pool, name) if one))

    @contextmanager
    def pool_active(self, pool: str) -> Iterator[str]:
        """Keep a thin pool active for the block, and return the name of the device that takes its messages."""
        self.resume(pool)
        with self._pool_lock:
            if not self._pool_users:
                self._pool_activated = self.device(pool) is None  # the pool's own: its volumes do without it
                if self._pool_activated:
                    self._client.activate(pool)
            self._pool_users += 1
        try:
            yield f"{device_name(self._group, pool)}-tpool"
        finally:
            with self._pool_lock:
                self._pool_users -= 1
                if self._pool_activated and not self._pool_users:
                    with suppress(CommandRefused):
                        self._client.deactivate(pool)

    @contextmanager
    def reading(self, volume: LogicalVolume) -> Iterator[Path]:
        """Activate a snapshot or an incomplete copy for the block, and return its device node.

        The device is held open: lvm neither deactivates nor removes a volume that is open.
        """
        base = volume.origin if volume.thick_snapshot else volume.name
        self._activate_to_read(base, volume)
        try:
            with ExitStack() as held:
                device = self.device(volume.name)
                if device is None:
                    raise _no_device(volume.name)
                _verify(device, volume)
                path = self.path(device)
                with os_errors_as_unavailable(path):
                    held.enter_context(open_descriptor(path))
                yield path
        finally:
            self.release(base, tagged=base != volume.name)

    def _activate_to_read(self, base: str, volume: LogicalVolume) -> None:
        """Activate a volume, or the origin of a snapshot with the tag of a read, unless it is active."""
        for _ in range(ATTEMPTS):
            if self.device(base):
                return
            if base == volume.name:
                self._activate(base, "", lambda: volume)
                return
            self._client.change_tags(base, add=[labels.READING], condition=INACTIVE_CONDITION)
            self._activate(base, READING_CONDITION, lambda: volume)

    def release(self, base: str, *, tagged: bool) -> None:
        """Deactivate what was active only to be read, unless another process reads it, or has it open or published."""
        device = self.device(base)
        if device is None or mounts.is_node_bound(device.number):
            return
        with suppress(CommandRefused):
            self._client.deactivate(base, READING_CONDITION if tagged else "")

    def _activate(self, name: str, condition: str, look: Look) -> None:
        """Activate a volume, given by name, if the condition holds; `look` returns it, or a snapshot of it.

        After its disk failed, a pool remains failed in the kernel until it is reactivated, even if the disk works
        again. It is reactivated here; the kernel refuses that while a volume of the pool is in use.
        """
        try:
            self._client.activate(name, condition)
        except CommandRefused as error:
            volume = look()
            pool = self._client.find(volume.pool).get(volume.pool) if volume.pool else None
            if pool and pool.health == "failed":
                log.warning("thin pool %s has failed in the kernel; reactivating it", pool.name)
                self._client.deactivate(volume.pool, POOL_FAILED_CONDITION)
                self._client.activate(volume.pool)
                self._client.activate(name, condition)
                return
            if "partial" in volume.health:
                raise FailedPrecondition(
                    f"{error}; disks of the volume are missing: bring them back, or see Recovery in docs/lvm.md"
                ) from None
            raise


def _no_device(name: str) -> Unavailable:
    return Unavailable(
        f"logical volume {name} was activated, but the kernel has no device for it; check the kernel log, and try again"
    )


def _verify(device: ActiveDevice, volume: LogicalVolume) -> None:
    """Raise Unavailable for the device of another volume."""
    if device.uuid != volume.uuid:
        raise Unavailable(
            f"device {device.name} has UUID {device.uuid}, but the volume has {volume.uuid}: it was replaced; try again"
        )
