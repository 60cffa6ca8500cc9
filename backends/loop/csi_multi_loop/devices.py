"""The loop device of a volume on its node: open, find, close, refresh."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Blank, Device, InUse, OpenRequest
from csi_multi.host import loopfile
from csi_multi.host.loopfile import LoopDevices

from .client import has_data, sync_path
from .directory import Directory
from .errors import translated
from .health import complete_size
from .labels import UnreadableLabel, VolumeLabel
from .store import Store, loop_devices, refuse_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceManager:
    directory: Directory
    volumes: Store[VolumeLabel]
    loop_files: LoopDevices

    @translated("opening a device")
    def open(self, request: OpenRequest) -> Device:
        leaf = self.volumes.leaf(request.handle)
        self.directory.require_ready()
        image = self.volumes.image(leaf)
        with self.volumes.locked(leaf):
            label = self.volumes.read(leaf)
            complete_size(image, label.size)
            device = self.loop_files.open(image, sector_size=label.sector_size, read_only=request.read_only)
            return loopfile.device_of(device, label.format.blank)

    @translated("looking for a device")
    def find(self, handle: str) -> Device | None:
        leaf = self.volumes.leaf(handle)
        try:
            blank = self.volumes.read(leaf).format.blank
        except UnreadableLabel:
            blank = Blank.NEVER  # the device can still be unmounted and closed
        device = self.loop_files.find(self.volumes.image(leaf))
        return loopfile.device_of(device, blank) if device else None

    @translated("looking for data")
    def has_data(self, handle: str) -> bool | None:
        """Return whether the image has anything but holes; None when its filesystem does not know holes.

        What was written to the device node, or to the file, and is only in memory so far, counts.
        """
        image = self.volumes.image(self.volumes.leaf(handle))
        for device in loop_devices(image):
            sync_path(device)
        sync_path(image)
        return has_data(image)

    @translated("closing a device")
    def close(self, handle: str) -> None:
        image = self.volumes.image(self.volumes.leaf(handle))
        if not image.exists():
            self.directory.require_ready()  # else its devices cannot be known
            refuse_lost(image)
        self.loop_files.close(image)

    @translated("refreshing a device")
    def refresh(self, handle: str) -> None:
        self.loop_files.refresh(self.volumes.image(self.volumes.leaf(handle)))


def refuse_attached(handle: str, image: Path) -> None:
    """Raise InUse when a volume's image is attached to a loop device on this node."""
    if devices := loop_devices(image):
        raise InUse(f"volume {handle!r} is attached to {devices[0]}; unpublish and unstage it first")
