"""When a logical volume is active: from open to close, or while something copies from it.

Activating a thick snapshot activates its source too, and a volume may be opened while its snapshot is
being read. So who activates only to read says so on the volume (tags.READING), whoever opens it takes the
note away, and the reader's deactivation holds only while the note is there: lvm checks that under its lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from csi_multi.contract import FailedPrecondition, Host, Unavailable

from . import devices, tags
from .lvm import Lvm, Refused
from .names import device_name
from .report import LogicalVolume

log = logging.getLogger(__name__)

NOTED = f'lv_tags={{"{tags.READING}"}}'
FAILED = 'lv_health_status="failed"'  # as the kernel says of a pool
SUSPENDED = 10.0  # seconds: longer than any command that lives
PATIENCE = 2.0  # seconds: btrfs lets go of its device after umount has returned


class Activation:
    def __init__(self, host: Host, lvm: Lvm, group: str) -> None:
        self._host = host
        self._lvm = lvm
        self._group = group

    def shown(self, name: str) -> devices.Shown | None:
        """Return the device of a logical volume, None while it is not active. No lvm command."""
        return devices.find(device_name(self._group, name))

    def path(self, shown: devices.Shown) -> Path:
        return devices.path_of(self._host, shown)

    def activate(self, volume: LogicalVolume) -> devices.Shown:
        """Make the device appear for somebody who opens the volume, and repair what a killed command left.

        Raises FailedPrecondition when parts of it are missing, Unavailable.
        """
        if tags.READING in volume.tags:
            self._lvm.retag(volume.name, remove=[tags.READING])
        if not volume.active or tags.READING in volume.tags:  # the reader may just have deactivated it
            self._activate(volume.name, volume)
        elif volume.suspended:
            self.mend(volume.name)
        return self._proven(volume)

    def deactivate(self, name: str, condition: str = "") -> None:
        """Make the device disappear, if it is there and the condition holds at that moment. Raises InUse."""
        shown = self.shown(name)
        if shown is None:
            return
        ends = time.monotonic() + PATIENCE
        while devices.in_use(self.path(shown), shown.number) and time.monotonic() < ends:
            if devices.published(shown.number):
                break
            time.sleep(0.01)
        try:
            if devices.published(shown.number):
                raise devices.busy(shown)
            self._lvm.deactivate(name, condition)
        except Refused as error:
            if self.shown(name):
                raise error.narrowed() from None

    def mend(self, name: str) -> None:
        """Resume what an lvm command that was killed left suspended: all who use it hang.

        A command that still runs suspends for a moment only, so that is waited for. Lower devices first: LVM's
        own refresh hangs in the kernel when it resumes the upper one over a lower one that is still suspended.
        """
        ends = time.monotonic() + SUSPENDED
        while stuck := devices.suspended(device_name(self._group, name)):
            if time.monotonic() > ends:
                log.warning("%s was left suspended by a command that was killed; it is resumed", name)
                for device in stuck:  # a table that waits there belongs to what never came to be
                    self._host.run("dmsetup", "clear", "--noudevsync", device)
                for device in stuck:
                    self._host.run("dmsetup", "resume", "--noudevsync", device)
                self._lvm.reload(name)
                return
            time.sleep(0.1)

    @contextmanager
    def reading(self, volume: LogicalVolume) -> Iterator[Path]:
        """Have the device of a snapshot, or of an unfinished copy, for a while."""
        base = volume.origin if volume.thick_snapshot else volume.name
        if self.shown(base) is None:
            if base != volume.name:
                self._lvm.retag(base, add=[tags.READING])
            self._activate(base, volume)
        try:
            yield self.path(self._proven(volume))
        finally:
            self.release(base, noted=base != volume.name)

    def release(self, base: str, *, noted: bool) -> None:
        """Deactivate what was active only to be read. Another reader, or an opener, keeps it."""
        with suppress(Refused):
            self._lvm.deactivate(base, NOTED if noted else "")
            if noted and self.shown(base) is None:
                self._lvm.retag(base, remove=[tags.READING])

    def _activate(self, name: str, volume: LogicalVolume) -> None:
        """Activate it, or what it lies on. A pool whose disk failed stays failed in the kernel, well as the disk
        may be by now, until it is started anew: that is done once nobody uses it, which the kernel sees to."""
        try:
            self._lvm.activate(name)
        except Refused as error:
            pool = self._lvm.look(volume.pool).get(volume.pool) if volume.pool else None
            if pool and pool.health == "failed":
                log.warning("thin pool %s has failed in the kernel; it is started anew", pool.name)
                self._lvm.deactivate(volume.pool, FAILED)
                self._lvm.activate(volume.pool)
                self._lvm.activate(name)
                return
            if "partial" in volume.health:
                raise FailedPrecondition(
                    f"{error}; disks below it are missing: bring them back, or see the recovery recipes"
                ) from None
            raise

    def _proven(self, volume: LogicalVolume) -> devices.Shown:
        shown = self.shown(volume.name)
        if shown is None:
            raise Unavailable(f"logical volume {volume.name} was activated, but the kernel shows no device of it")
        if shown.uuid != volume.uuid:
            raise Unavailable(f"the device {shown.name} is {shown.uuid}, not {volume.uuid}; it was replaced meanwhile")
        return shown
