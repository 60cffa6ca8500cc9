"""The device of a volume on this node: map its image, find, resize and unmap it, and prove that it shows that image."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from csi_multi.contract import (
    Blank,
    Capability,
    Device,
    FailedPrecondition,
    HealthEntry,
    InUse,
    NotFound,
    OpenRequest,
    Setting,
    StorageError,
    Unavailable,
)
from csi_multi.host import release
from csi_multi.host.blockdev import BlockDevices
from csi_multi.host.device_notes import DeviceNotes

from . import nbd
from .ceph_rules import MapOptions, parse_options
from .client import Client
from .config import Config
from .connection import keyring_available
from .fencing import Fence
from .health import device_health
from .labels import Label
from .mapping import KINDS, ImageMapper
from .resources import Image, MappedImage
from .watchers import of_others, wait_until_unwatched, watch_lost

log = logging.getLogger(__name__)

NOTES = "csi-multi-rbd"  # below /dev
GROW_SECONDS = 10.0  # seconds within which the kernel notices a new size
POLL_SECONDS = 0.1
RESTARTS_AT_ONCE = 16
BLANKS = {one.value: one for one in Blank}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapSettings:
    """How a volume is mapped. `exclusive`: by one node at a time."""

    mounter: str
    map_options: str = ""
    unmap_options: str = ""
    exclusive: bool = True

    @classmethod
    def of(cls, label: Label, config: Config, capability: Capability | None) -> MapSettings:
        """Return the settings of a volume: those on its label, and the instance's for the others."""
        return cls(
            mounter=label.mounter or config.mounter,
            map_options=label.map_options or config.map_options,
            unmap_options=label.unmap_options or config.unmap_options,
            exclusive=capability is None or capability.mode.single_node,
        )


class DeviceManager:
    def __init__(self, config: Config, setting: Setting, client: Client, kernel: BlockDevices | None = None) -> None:
        self._config = config
        self._setting = setting
        self._client = client
        self._kernel = kernel or BlockDevices()
        self._mapper = ImageMapper(config, self._kernel, setting.node)
        self._notes = DeviceNotes(self._kernel.dev / NOTES)
        self._fence = Fence(config, setting)

    def open(
        self,
        client: Client,
        image: Image,
        settings: MapSettings,
        request: OpenRequest,
        blank: Blank,
        *,
        holder: str = "",
    ) -> Device:
        """Map the image, unless it is mapped already, read-only or writable as requested. `holder` is what its
        image-meta says about who had it last.

        Raises FailedPrecondition when it is in use on another node or this node cannot map it, InUse when it is in
        use here read-only instead of writable or the reverse, Unavailable.
        """
        given = parse_options(settings.map_options)
        watchers = client.watchers(image.name) if settings.exclusive or self._mapper.find(image.name) else ()
        mapping = self._usable(client, image, given, watchers)
        try:
            if settings.exclusive:
                self._fence.cut_off(client, image.name, of_others(watchers, mapping), holder)
                wait_until_unwatched(client, image.name, mapping, watchers=watchers)
            if mapping is None:
                mapping = self._mapper.map(client, image, KINDS[settings.mounter], given, exclusive=settings.exclusive)
                if settings.exclusive:  # another node may have checked at the same moment
                    wait_until_unwatched(client, image.name, mapping)
            path = self._mapper.device_path(mapping)
            if settings.exclusive:
                self._fence.record(client, image.name, mapping, holder)
        except FailedPrecondition:
            if mapping:
                self._unmap_unused(client, image.name, mapping)
            raise
        self._set_read_only(path, request.read_only)
        note = {"image_id": mapping.image_id, "blank": blank.value, "unmap_options": settings.unmap_options}
        self._notes.write(mapping.disk, note)
        return self._device(mapping)

    def find(self, image: str) -> Device | None:
        """Return the device as the kernel shows it, without a command of Ceph."""
        found = self._used_last(self._mapper.find(image))
        return self._device(found[-1]) if found else None

    def close(self, image: str) -> None:
        """End all mappings of the image. Raises InUse, Unavailable."""
        for mapping in self._mapper.find(image):
            self._refuse_in_use(image, mapping)
            self._unmap(self._client, image, mapping)

    def _refuse_in_use(self, image: str, mapping: MappedImage) -> None:
        path = self._mapper.device_path(mapping)
        if release.stays_in_use(lambda: self._in_use(mapping), lambda: self._kernel.is_node_bound(path)):
            raise InUse(
                f"{path} of image {self._client.spec(image)} is in use on this node; unpublish and unstage it first"
            )

    def refresh(self, image: str) -> None:
        """Make the device show the image's size. Raises NotFound when it is not open, Unavailable."""
        found = self._mapper.find(image)
        if not found:
            raise NotFound(f"image {self._client.spec(image)} is not mapped on this node")
        if not self._has_key():
            for mapping in found:
                self._mapper.refresh(mapping)  # with the key that the kernel has
            return  # the caller compares the size with the requested one
        size = self._client.info(image).size
        for mapping in found:
            if self._kernel.size(mapping.disk) != size:
                self._mapper.grow(mapping, size)
        ends = time.monotonic() + GROW_SECONDS
        while small := [mapping.disk for mapping in found if self._kernel.size(mapping.disk) != size]:
            if time.monotonic() > ends:
                raise Unavailable(
                    f"/dev/{small[0]} does not show the {size} bytes of {self._client.spec(image)} yet; try again"
                )
            time.sleep(POLL_SECONDS)

    def set_blank(self, image: str, blank: Blank) -> None:
        """Record in the device note what the image-meta says about the volume's data, for `find`."""
        for mapping in self._mapper.find(image):
            if note := self._notes.read(mapping.disk):
                self._notes.write(mapping.disk, {**note, "blank": blank.value})

    def restart_dead(self) -> None:
        """Start a new rbd-nbd for every device whose process died: reads and writes of the mounted volume wait for it.

        In parallel, since each start waits until the cluster has dropped the client of the dead process.
        """
        dead = [(image, mapping) for image, mapping in nbd.find(self._kernel, self._config) if not mapping.served]
        if dead:
            with ThreadPoolExecutor(max_workers=RESTARTS_AT_ONCE) as threads:
                list(threads.map(self._restart, *zip(*dead, strict=True)))

    def _restart(self, image: str, mapping: MappedImage) -> None:
        if not self._has_key():
            log.error(
                "the rbd-nbd of /dev/%s (image %s) has died, and there is no key here to start a new one; delete the "
                "pods of the volume",
                mapping.disk,
                image,
            )
            return
        log.warning("the rbd-nbd of /dev/%s (image %s) has died; a new one is started", mapping.disk, image)
        try:
            self._mapper.attach(self._client, image, mapping, parse_options(self._config.map_options))
            if mapping.exclusive:
                self._fence.record(self._client, image, mapping, "")
        except StorageError as error:
            log.warning("no new rbd-nbd could be started for /dev/%s (image %s): %s", mapping.disk, image, error)

    def health(self, image: str) -> tuple[HealthEntry, ...]:
        """Return what is wrong with the image's device on this node."""
        keyless = not self._has_key()
        found = (device_health(self._client, image, mapping, keyless=keyless) for mapping in self._mapper.find(image))
        return tuple(filter(None, found))

    def _has_key(self) -> bool:
        return keyring_available(self._config, self._setting)

    def _usable(self, client: Client, image: Image, given: MapOptions, watchers: tuple[str, ...]) -> MappedImage | None:
        """Return the mapping to use. Unmaps unused ones that are broken or superfluous."""
        usable: list[MappedImage] = []
        for mapping in self._mapper.find(image.name):
            if mapping.image_id != image.id:
                self._unmap_replaced(client, image, mapping)
            elif not mapping.served:
                self._mapper.attach(client, image.name, mapping, given)
                usable.append(replace(mapping, served=True))
            elif watch_lost(watchers, mapping) and not self._in_use(mapping):
                self._unmap_unused(client, image.name, mapping)
            else:
                usable.append(mapping)
        usable = self._used_last(usable)
        for mapping in usable[:-1]:
            self._unmap_unused(client, image.name, mapping)
        return usable[-1] if usable else None

    def _used_last(self, found: list[MappedImage]) -> list[MappedImage]:
        """Sort several mappings. A single one is not checked: the check blocks the device for a moment."""
        return sorted(found, key=self._in_use) if len(found) > 1 else found

    def _unmap_replaced(self, client: Client, image: Image, mapping: MappedImage) -> None:
        if self._in_use(mapping):
            raise FailedPrecondition(
                f"/dev/{mapping.disk} is in use and shows image {client.spec(image.name)} with id {mapping.image_id}, "
                f"which was deleted; the image of that name has id {image.id} now: unpublish and unstage the volume "
                "first"
            )
        self._unmap_unused(client, image.name, mapping)

    def _unmap_unused(self, client: Client, image: str, mapping: MappedImage) -> None:
        """End a mapping, unless it is in use."""
        if not self._in_use(mapping):
            self._unmap(client, image, mapping)

    def _unmap(self, client: Client, image: str, mapping: MappedImage) -> None:
        options = self._notes.read(mapping.disk).get("unmap_options", "")
        self._mapper.unmap(client, image, mapping, parse_options(options or self._config.unmap_options))
        self._notes.remove(mapping.disk)

    def _in_use(self, mapping: MappedImage) -> bool:
        """Return whether the device is mounted, published raw, or below another device, which may be a loop device."""
        path = self._kernel.node(mapping.disk)
        if path is None:
            return False
        backing = (self._kernel.text(disk, "loop/backing_file") for disk in self._kernel.disks())
        return self._kernel.in_use(path) or str(path) in backing

    def _set_read_only(self, path: Path, wanted: bool) -> None:
        if self._kernel.read_only(path.name) == wanted:
            return
        if self._kernel.in_use(path):
            raise InUse(
                f"{path} is in use {'read-write' if wanted else 'read-only'} on this node; unpublish and unstage it "
                "first"
            )
        self._kernel.set_read_only(path, wanted)

    def _device(self, mapping: MappedImage) -> Device:
        path = self._mapper.device_path(mapping)
        note = self._notes.read(mapping.disk)
        blank = note.get("blank") if note.get("image_id") == mapping.image_id else None
        return Device(
            path=path,
            number=mapping.number,
            proof=mapping.proof,
            # without a note; a device that is found in use is then recorded as formatted on the image itself
            blank=BLANKS.get(blank or "", Blank.ZEROED),
            read_only=self._kernel.read_only(mapping.disk),
        )
