"""What this process knows of the devices that it opened, so that it need not ask lvm about them again.

It is known of one device in the kernel, and forgotten when that is closed. Without it, as in a new process, lvm is
asked. A volume that may hold data stays so for ever, and lvm neither removes nor renames a volume without its device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from csi_multi.host.blockdev import open_descriptor, os_errors_as_unavailable

from . import wiping
from .kernel_devices import ActiveDevice
from .report import LogicalVolume

SECTOR = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDevice:
    """A device that this process opened."""

    uuid: str
    thin: bool
    used: bool  # it may hold data
    sequence: str = ""
    sectors: int | None = None  # that had been written when its ends were wiped; None: they were not, or are noted
    formatting: bool = False  # mkfs may have begun since then

    def is_at(self, device: ActiveDevice | None) -> bool:
        """Return whether this is the volume's device now."""
        return device is not None and device.uuid == self.uuid


class OpenedDevices:
    """The devices that this process opened, by the name of the logical volume."""

    def __init__(self) -> None:
        self._known: dict[str, OpenedDevice] = {}

    def add(self, volume: LogicalVolume) -> None:
        """Add a volume whose device was verified to be its own."""
        known = self._known.get(volume.name)
        if known is None or known.uuid != volume.uuid:
            known = OpenedDevice(uuid=volume.uuid, thin=volume.thin, used=False)
        self._known[volume.name] = replace(known, used=wiping.used(volume))

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def is_thick(self, name: str, device: ActiveDevice | None) -> bool:
        known = self._known.get(name)
        return known is not None and known.is_at(device) and not known.thin

    # It may hold data

    def is_used(self, name: str, device: ActiveDevice) -> bool:
        """Return whether this is the device of the volume, and the volume may hold data."""
        known = self._known.get(name)
        return known is not None and known.is_at(device) and known.used

    def set_used(self, name: str) -> None:
        if known := self._known.get(name):
            self._known[name] = replace(known, used=True, sectors=None)

    # Its ends are wiped, and that is not noted in its tags

    def set_wiped(self, volume: LogicalVolume, device: ActiveDevice, before: int | None, wiped: int) -> bool:
        """Remember that bytes were wiped. Return whether the kernel shows what is written to the device from now on.

        `before`: the sectors that were written to it before; the kernel counts them unless that is switched off.
        """
        sectors = device.sectors_written()
        if not device.sequence or before is None or sectors is None or sectors - before < wiped // SECTOR:
            return False
        self._known[volume.name] = OpenedDevice(
            uuid=volume.uuid, thin=volume.thin, used=False, sequence=device.sequence, sectors=sectors
        )
        return True

    def is_wiped(self, name: str, device: ActiveDevice) -> bool:
        """Return whether its ends were wiped, whatever was written since, but not by a mkfs."""
        known = self._wiped(name, device)
        return known is not None and not known.formatting

    def begin_formatting(self, name: str, device: ActiveDevice, path: Path) -> bool:
        """Return whether nothing was written to it since its ends were wiped; remember that mkfs begins. Unavailable.

        Then no user can have written to it, and csi.new in its tags says what an interrupted mkfs needs.
        """
        known = self._wiped(name, device)
        if known is None:
            return False
        with os_errors_as_unavailable(path), open_descriptor(path) as descriptor:
            os.fsync(descriptor)  # what another program wrote may be in the page cache only
        if device.sectors_written() != known.sectors:
            return False
        self._known[name] = replace(known, formatting=True)
        return True

    def _wiped(self, name: str, device: ActiveDevice) -> OpenedDevice | None:
        known = self._known.get(name)
        if known is None or known.sectors is None or not known.is_at(device) or known.sequence != device.sequence:
            return None
        return known
