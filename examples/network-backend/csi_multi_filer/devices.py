"""The loop device of a volume on the node that uses it: open, find, close, refresh; on one node at a time.

The holder is written before the device is made and removed after it is gone, so that no crash leaves a device that
another node does not know of. A node that is lost stays the holder: only an operator knows that it does not write, and
says so by declaring it out of service (`take_over`).
The end of use on a node (find, close) waits a limited time for a share that hangs.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Blank, Busy, Device, InUse, NotFound, OpenRequest, Setting, StorageError
from csi_multi.host import bounded, loopdev, loopfile
from csi_multi.host.loopfile import LoopDevices

from .client import HOLDER, Client
from .errors import ImageLost
from .labels import Labels, leaf_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceManager:
    client: Client
    labels: Labels
    loop_files: LoopDevices
    setting: Setting
    take_over: bool

    @property
    def node(self) -> str:
        return self.setting.node

    def open(self, request: OpenRequest) -> Device:
        leaf = leaf_of(request.handle)
        with self.client.connected("opening a device"), self.client.locked(leaf):
            blank, image = self.labels.read(leaf).blank, self.client.image(leaf)
            holder = self.client.holder(leaf)
            if holder not in ("", self.node):
                self._refuse_in_service(leaf, holder)
            if holder != self.node:
                self.client.hold(leaf, self.node)
            try:
                return loopfile.device_of(self.loop_files.open(image, read_only=request.read_only), blank)
            except (StorageError, OSError):
                if holder != self.node:
                    with suppress(StorageError, OSError):  # the first error is the one to report
                        self._release_closed(leaf)
                raise

    def find(self, handle: str) -> Device | None:
        leaf = leaf_of(handle)
        try:
            return self.client.ask(lambda: self._find(leaf))
        except bounded.NoAnswer:
            if device := _shown(self.client.image(leaf)):
                return loopfile.device_of(device, Blank.NEVER)  # it can be unmounted, and is never formatted
            raise

    def close(self, handle: str) -> None:
        leaf = leaf_of(handle)
        self.client.ask(lambda: self._find_label(leaf))  # a share that hangs would hold this thread
        with self.client.connected("closing a device"), ExitStack() as stack:
            with suppress(NotFound, ImageLost):  # the device of an image that was removed is closed, too
                stack.enter_context(self.client.locked(leaf))
            self.loop_files.close(self.client.image(leaf))
            if self.client.is_held_by(leaf, self.node):
                self.client.release(leaf)

    def refresh(self, handle: str) -> None:
        leaf = leaf_of(handle)
        with self.client.connected("refreshing a device"), self.client.locked(leaf):  # a lock renews what NFS caches
            self.loop_files.refresh(self.client.image(leaf))

    def refuse_open(self, leaf: str) -> None:
        """Raise InUse when a node has the volume's device open."""
        if holder := self.client.holder(leaf):
            raise InUse(f"volume {leaf!r} is open on node {holder!r}; unpublish and unstage it there first")

    def release_closed(self) -> None:
        """Release what this node holds and has no device of: it was restarted, or a process ended in between."""
        with self.client.connected("releasing devices that are gone"):
            for leaf in self.client.leaves(HOLDER):
                if self.client.is_held_by(leaf, self.node):
                    with suppress(NotFound, Busy, ImageLost), self.client.locked(leaf):
                        self._release_closed(leaf)

    def _find(self, leaf: str) -> Device | None:
        with self.client.connected("looking for a device"):
            blank, device = self.labels.read(leaf).blank, self.loop_files.find(self.client.image(leaf))
            return loopfile.device_of(device, blank) if device else None

    def _find_label(self, leaf: str) -> None:
        with self.client.connected("closing a device"):
            self.client.read_label(leaf)

    def _release_closed(self, leaf: str) -> None:
        """Release a volume that this node holds and has no device of, under its lock."""
        if self.client.is_held_by(leaf, self.node) and not self.loop_files.find(self.client.image(leaf)):
            self.client.release(leaf)

    def _refuse_in_service(self, leaf: str, holder: str) -> None:
        if self.take_over and self.setting.out_of_service(holder):
            log.warning("volume %s is taken over from node %s, which is out of service", leaf, holder)
            return
        raise InUse(
            f"volume {leaf!r} is open on node {holder!r}; unpublish and unstage it there; when that node is "
            f"switched off for good, remove {self.client.holder_file(leaf)}"
        )


def _shown(image: Path) -> Path | None:
    """Return the device whose file has this path as the kernel shows it, without a question to the share."""
    paths = (str(image), f"{image}{loopdev.DELETED}")
    found = [device for device, backing in loopdev.bound_devices().items() if backing in paths]
    return max(found, key=loopfile.in_use, default=None)
