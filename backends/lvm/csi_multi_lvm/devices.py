"""The device of a volume on this node: open, find, close, refresh, and the record of its first use."""

from __future__ import annotations

from dataclasses import replace

from csi_multi.contract import Device, OpenRequest

from . import labels, wiping
from .activation import ActiveDevice, set_read_only
from .operation import Operation
from .report import LogicalVolume


class DeviceManager(Operation):
    def open(self, request: OpenRequest) -> Device:
        """Activate a volume, and wipe it before its first use. Raises NotFound, InUse, FailedPrecondition."""
        leaf = self._owned_volumes.leaf(request.handle)
        found = self._owned_volumes.get(leaf)
        active = self._activation.activate(found)
        found = replace(found, tags=found.tags - {labels.READING})
        path = self._activation.path(active)
        found = wiping.prepare(
            self._client, found, path, block=request.block, read_again=lambda: self._owned_volumes.get(leaf)
        )
        set_read_only(path, active, request.read_only)
        return self._device(active, found)

    def find(self, handle: str) -> Device | None:
        """Return the device of a volume, None if it is not active or the device is another volume's."""
        leaf = self._owned_volumes.leaf(handle)
        active = self._activation.device(self._owned_volumes.name(leaf))
        if active is None:
            return None
        found = self._owned_volumes.get(leaf)
        return self._device(active, found) if active.uuid == found.uuid else None

    def close(self, handle: str) -> None:
        """Deactivate a volume, if it is active. Raises InUse, FailedPrecondition for another owner's volume."""
        leaf = self._owned_volumes.leaf(handle)
        name = self._owned_volumes.name(leaf)
        self._activation.deactivate(name, f'lv_tags={{"{self._owned_volumes.owner}"}}')
        if self._activation.device(name):
            self._owned_volumes.get(leaf)  # raises if it is another owner's

    def refresh(self, handle: str) -> None:
        """Show the new size of a volume that has grown: lvextend has done that already. Raises NotFound."""
        self._owned_volumes.get(self._owned_volumes.leaf(handle))

    def formatting(self, handle: str) -> None:
        """Record that mkfs begins. Raises FailedPrecondition for a volume that may hold data."""
        wiping.formatting(self._client, self._owned_volumes.get(self._owned_volumes.leaf(handle)))

    def formatted(self, handle: str) -> None:
        """Record that the volume may hold data from now on."""
        wiping.formatted(self._client, self._owned_volumes.get(self._owned_volumes.leaf(handle)))

    def has_data(self, handle: str) -> bool | None:
        """Return whether a thin volume has blocks of its pool, None for a thick volume, which has all of its space."""
        active = self._activation.device(self._owned_volumes.name(self._owned_volumes.leaf(handle)))
        sectors = self._activation.mapped_sectors(active) if active else None
        return None if sectors is None else sectors > 0

    def _device(self, active: ActiveDevice, found: LogicalVolume) -> Device:
        return Device(
            path=self._activation.path(active),
            number=active.number,
            proof={"dm/uuid": found.uuid},
            blank=wiping.blank(found),
            read_only=active.read_only,
        )
