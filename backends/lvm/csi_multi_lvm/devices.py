"""The device of a volume on this node: open, find, close, refresh, and the record of its first use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from csi_multi.contract import Blank, Device, OpenRequest, StorageError, Unavailable

from . import block_io, labels, wiping
from .activation import HeldVolume
from .errors import CommandRefused
from .kernel_devices import ActiveDevice, set_read_only
from .opened_devices import OpenedDevices
from .operation import InstanceParts, Operation
from .report import LogicalVolume


class DeviceManager(Operation):
    def __init__(self, instance: InstanceParts) -> None:
        super().__init__(instance)
        self._opened = OpenedDevices()
        self._owned = f'lv_tags={{"{self._owned_volumes.owner}"}}'

    def open(self, request: OpenRequest) -> Device:
        """Activate a volume, and wipe it before its first use. Raises NotFound, InUse, FailedPrecondition."""
        leaf = self._owned_volumes.leaf(request.handle)
        name = self._owned_volumes.name(leaf)
        with self._activation.held(
            name, self._config.thin_pool, self._owned, lambda: self._owned_volumes.get(leaf)
        ) as held:
            found = self._prepared(held, request)
        self._opened.add(found)
        set_read_only(held.path, held.device, request.read_only)
        return self._device(held.device, wiping.blank(found))

    def _prepared(self, held: HeldVolume, request: OpenRequest) -> LogicalVolume:
        """Return the volume, wiped before its first use. Only where mkfs follows is the note of that left out."""
        name, before = held.volume.name, held.device.sectors_written()
        wiped = self._opened.is_wiped(name, held.device)
        found = wiping.prepare(self._client, held, block=request.block, wiped=wiped)
        if labels.NEW not in found.tags:
            return found
        no_mkfs = request.block or request.read_only
        ends = min(found.size, 2 * block_io.MIB)
        if no_mkfs or not (wiped or self._opened.set_wiped(found, held.device, before, ends)):
            self._opened.forget(name)
            wiping.note_wiped(self._client, name, self._owned)
            found = replace(found, tags=(found.tags - {labels.NEW}) | {labels.FRESH})
        return found

    def find(self, handle: str) -> Device | None:
        """Return the device of a volume, None if it is not active or the device is another volume's."""
        leaf = self._owned_volumes.leaf(handle)
        name = self._owned_volumes.name(leaf)
        active = self._activation.device(name)
        if active is None:
            return None
        if self._opened.is_used(name, active):
            return self._device(active, Blank.NEVER)
        found = self._owned_volumes.get(leaf)
        if active.uuid != found.uuid:
            return None
        self._opened.add(found)
        return self._device(active, wiping.blank(found))

    def close(self, handle: str) -> None:
        """Deactivate a volume, if it is active. Raises InUse, FailedPrecondition for another owner's volume."""
        leaf = self._owned_volumes.leaf(handle)
        name = self._owned_volumes.name(leaf)
        active = self._activation.device(name)
        wiped = active is not None and self._opened.is_wiped(name, active)  # and was not formatted
        self._activation.deactivate(name, self._owned)
        if self._activation.device(name):
            self._owned_volumes.get(leaf)  # raises if it is another owner's
            return
        self._opened.forget(name)
        if wiped:
            with suppress(StorageError):  # without the note, its ends are wiped again
                wiping.note_wiped(self._client, name, self._owned)

    def refresh(self, handle: str) -> None:
        """Show the new size of a volume that has grown: lvextend has done that already. Raises NotFound."""
        leaf = self._owned_volumes.leaf(handle)
        active = self._activation.device(self._owned_volumes.name(leaf))
        if active is None or not self._opened.is_used(self._owned_volumes.name(leaf), active):
            self._owned_volumes.get(leaf)

    def formatting(self, handle: str) -> None:
        """Record that mkfs begins. Raises FailedPrecondition for a volume that may hold data."""
        leaf = self._owned_volumes.leaf(handle)
        name = self._owned_volumes.name(leaf)
        active = self._activation.device(name)
        if active and self._opened.begin_formatting(name, active, self._activation.path(active)):
            return
        if not self._noted(leaf, lambda: wiping.formatting(self._client, name, self._owned)):
            found = self._owned_volumes.get(leaf)
            wiping.require_unused(found)
            if labels.FORMATTING not in found.tags:
                raise _not_noted(name)

    def formatted(self, handle: str) -> None:
        """Record that the volume may hold data from now on."""
        leaf = self._owned_volumes.leaf(handle)
        name = self._owned_volumes.name(leaf)
        noted = self._noted(leaf, lambda: wiping.formatted(self._client, name, self._owned))
        if not noted and not wiping.used(self._owned_volumes.get(leaf)):
            raise _not_noted(name)
        self._opened.set_used(name)

    def _noted(self, leaf: str, note: Callable[[], bool]) -> bool:
        """Return whether lvm says that a note was taken. Raises NotFound when there is no such volume."""
        try:
            return note()
        except CommandRefused:
            self._owned_volumes.get(leaf)
            raise

    def has_data(self, handle: str) -> bool | None:
        """Return whether a thin volume has blocks of its pool, None for a thick volume, which has all of its space."""
        name = self._owned_volumes.name(self._owned_volumes.leaf(handle))
        active = self._activation.device(name)
        if active is None or self._opened.is_thick(name, active):
            return None
        sectors = self._activation.mapped_sectors(active)
        return None if sectors is None else sectors > 0

    def _device(self, active: ActiveDevice, blank: Blank) -> Device:
        return Device(
            path=self._activation.path(active),
            number=active.number,
            proof={"dm/uuid": active.uuid},
            blank=blank,
            read_only=active.read_only,
        )


def _not_noted(name: str) -> Unavailable:
    return Unavailable(f"lvm did not change the tags of logical volume {name}, although it may; try again")
