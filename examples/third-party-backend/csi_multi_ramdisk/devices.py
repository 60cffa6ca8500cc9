"""The loop device of a volume on its node: open, find, close, refresh."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import Device, InUse, OpenRequest
from csi_multi.host import loopfile
from csi_multi.host.loopfile import LoopDevices

from .client import Client
from .labels import Handles, Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceManager:
    client: Client
    labels: Labels
    handles: Handles
    loop_files: LoopDevices

    def open(self, request: OpenRequest) -> Device:
        leaf = self.handles.leaf(request.handle)
        with self.client.connected("opening a device"), self.client.locked(leaf):
            blank, image = self.labels.read(leaf).blank, self.client.image(leaf)
            return loopfile.device_of(self.loop_files.open(image, read_only=request.read_only), blank)

    def find(self, handle: str) -> Device | None:
        leaf = self.handles.leaf(handle)
        with self.client.connected("looking for a device"):
            blank, device = self.labels.read(leaf).blank, self.loop_files.find(self.client.image(leaf))
            return loopfile.device_of(device, blank) if device else None

    def close(self, handle: str) -> None:
        with self.client.connected("closing a device"):
            self.loop_files.close(self.client.image(self.handles.leaf(handle)))

    def refresh(self, handle: str) -> None:
        with self.client.connected("refreshing a device"):
            self.loop_files.refresh(self.client.image(self.handles.leaf(handle)))

    def refuse_attached(self, leaf: str) -> None:
        """Raise InUse when the volume has a device on this node."""
        if device := self.loop_files.find(self.client.image(leaf)):
            raise InUse(f"volume {leaf!r} is attached to {device}; unpublish and unstage it first")
