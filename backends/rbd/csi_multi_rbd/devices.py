"""The device of a volume on this node: mapped by whom it may be, and proven to show the right image."""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from csi_multi.contract import (
    Blank,
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
from csi_multi.host.blockdev import BlockDevices
from csi_multi.host.device_notes import DeviceNotes

from . import keys, nbd, nodehealth, options
from .alone import await_alone, lost
from .config import Config
from .mapped import Mapped
from .mapping import KINDS, Mapper
from .options import Options
from .rbd import Rbd
from .rows import Image

log = logging.getLogger(__name__)

MARKS = "csi-multi-rbd"  # below /dev
RELEASE = 2.0  # seconds: btrfs lets go of its device after umount has returned
GROW = 10.0  # seconds the kernel may take to notice a new size
STEP = 0.1
HEALERS = 16
BLANKS = {one.value: one for one in Blank}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a volume is to be mapped. `exclusive`: by one node at a time."""

    mounter: str
    map_options: str = ""
    unmap_options: str = ""
    exclusive: bool = True


class Devices:
    def __init__(self, config: Config, setting: Setting, rbd: Rbd, kernel: BlockDevices | None = None) -> None:
        self._config = config
        self._setting = setting
        self._rbd = rbd
        self._kernel = kernel or BlockDevices()
        self._mapper = Mapper(config, self._kernel)
        self._marks = DeviceNotes(self._kernel.dev / MARKS)

    def open(self, rbd: Rbd, image: Image, use: Use, request: OpenRequest, blank: Blank) -> Device:
        """Map the image, or find it mapped, as writable as asked.

        Raises FailedPrecondition when it is in use on another node, or this one cannot map it, InUse when it is in
        use here the other way, Unavailable.
        """
        given = options.parse(use.map_options)
        seen = rbd.watchers(image.name) if use.exclusive or self._mapper.of(image.name) else ()
        shown = self._usable(rbd, image, given, seen)
        try:
            if use.exclusive:
                await_alone(rbd, image.name, shown, seen=seen)
            if shown is None:
                shown = self._mapper.map(rbd, image, KINDS[use.mounter], given, exclusive=use.exclusive)
                if use.exclusive:  # another node may have looked at the same moment
                    await_alone(rbd, image.name, shown)
            path = self._mapper.node(shown)
        except FailedPrecondition:
            if shown:
                self._drop(rbd, image.name, shown)
            raise
        self._set_read_only(path, request.read_only)
        facts = {"image_id": shown.image_id, "blank": blank.value, "unmap_options": use.unmap_options}
        self._marks.write(shown.disk, facts)
        return self._device(shown)

    def find(self, image: str) -> Device | None:
        """Return the device as the kernel shows it. No Ceph command."""
        found = self._used_last(self._mapper.of(image))
        return self._device(found[-1]) if found else None

    def close(self, image: str) -> None:
        """End all mappings of the image. Raises InUse, Unavailable."""
        for shown in self._mapper.of(image):
            ends = time.monotonic() + RELEASE
            while self._used(shown):
                path = self._mapper.node(shown)
                if time.monotonic() > ends or self._kernel.published(path):
                    raise InUse(
                        f"{path} of image {self._rbd.spec(image)} is in use on this node; unpublish and unstage it"
                    )
                time.sleep(STEP)
            self._end(self._rbd, image, shown)

    def refresh(self, image: str) -> None:
        """Make the device show the image's size. Raises NotFound when it is not open, Unavailable."""
        found = self._mapper.of(image)
        if not found:
            raise NotFound(f"image {self._rbd.spec(image)} is not mapped on this node")
        if not self._has_key():
            for shown in found:
                self._mapper.look(shown)  # by the key that the kernel has
            return  # what it shows now, the caller compares with what was asked for
        size = self._rbd.info(image).size
        for shown in found:
            if self._kernel.size(shown.disk) != size:
                self._mapper.grow(shown, size)
        ends = time.monotonic() + GROW
        while small := [shown.disk for shown in found if self._kernel.size(shown.disk) != size]:
            if time.monotonic() > ends:
                raise Unavailable(
                    f"/dev/{small[0]} does not show the {size} bytes of {self._rbd.spec(image)} yet; try again"
                )
            time.sleep(STEP)

    def note(self, image: str, blank: Blank) -> None:
        """Note what is written on the image about its data, for `find`."""
        for shown in self._mapper.of(image):
            if facts := self._marks.read(shown.disk):
                self._marks.write(shown.disk, {**facts, "blank": blank.value})

    def heal(self) -> None:
        """Start an rbd-nbd for every device of ours whose process died; who has it mounted waits for that.

        At once: each has to wait until the cluster has forgotten the process that died.
        """
        dead = [(image, shown) for image, shown in nbd.mapped(self._kernel, self._config) if not shown.served]
        if dead:
            with ThreadPoolExecutor(max_workers=HEALERS) as healers:
                list(healers.map(self._heal, *zip(*dead, strict=True)))

    def _heal(self, image: str, shown: Mapped) -> None:
        if not self._has_key():
            text = (
                "/dev/%s of image %s has lost its rbd-nbd, and there is no key here to start another: delete its pods"
            )
            log.error(text, shown.disk, image)
            return
        log.warning("/dev/%s of image %s has lost its rbd-nbd; another is started", shown.disk, image)
        try:
            self._mapper.attach(self._rbd, image, shown, options.parse(self._config.map_options))
        except StorageError as error:
            log.warning("/dev/%s of image %s: %s", shown.disk, image, error)

    def health(self, image: str) -> tuple[HealthEntry, ...]:
        """Return what is wrong with the image's device on this node."""
        alone = not self._has_key()
        found = (nodehealth.trouble(self._rbd, image, shown, alone=alone) for shown in self._mapper.of(image))
        return tuple(filter(None, found))

    def _has_key(self) -> bool:
        return keys.at_hand(self._config, self._setting)

    def _usable(self, rbd: Rbd, image: Image, given: Options, watchers: tuple[str, ...]) -> Mapped | None:
        """Return the mapping to go on with. Of what nobody uses, end what is of no use, or one too many."""
        usable: list[Mapped] = []
        for shown in self._mapper.of(image.name):
            if shown.image_id != image.id:
                self._drop_old(rbd, image, shown)
            elif not shown.served:
                self._mapper.attach(rbd, image.name, shown, given)
                usable.append(replace(shown, served=True))
            elif lost(watchers, shown) and not self._used(shown):
                self._drop(rbd, image.name, shown)
            else:
                usable.append(shown)
        usable = self._used_last(usable)
        for shown in usable[:-1]:
            self._drop(rbd, image.name, shown)
        return usable[-1] if usable else None

    def _used_last(self, found: list[Mapped]) -> list[Mapped]:
        """Sort, where there is a choice: to ask whether a device is used keeps others from it for a moment."""
        return sorted(found, key=self._used) if len(found) > 1 else found

    def _drop_old(self, rbd: Rbd, image: Image, shown: Mapped) -> None:
        if self._used(shown):
            raise FailedPrecondition(
                f"/dev/{shown.disk} is in use and shows image {rbd.spec(image.name)} with id {shown.image_id}, which "
                f"is gone; the one of that name has id {image.id} now: unpublish and unstage the volume"
            )
        self._drop(rbd, image.name, shown)

    def _drop(self, rbd: Rbd, image: str, shown: Mapped) -> None:
        """End a mapping, unless it is in use."""
        if not self._used(shown):
            self._end(rbd, image, shown)

    def _end(self, rbd: Rbd, image: str, shown: Mapped) -> None:
        told = self._marks.read(shown.disk).get("unmap_options", "")
        self._mapper.unmap(rbd, image, shown, options.parse(told or self._config.unmap_options))
        self._marks.remove(shown.disk)

    def _used(self, shown: Mapped) -> bool:
        """Whether it is mounted, published raw, or below another device: loop devices do not count for the kernel."""
        path = self._kernel.node(shown.disk)
        if path is None:
            return False
        backing = (self._kernel.text(disk, "loop/backing_file") for disk in self._kernel.disks())
        return self._kernel.in_use(path) or str(path) in backing

    def _set_read_only(self, path: Path, wanted: bool) -> None:
        if self._kernel.read_only(path.name) == wanted:
            return
        if self._kernel.in_use(path):
            raise InUse(
                f"{path} is in use {'read-write' if wanted else 'read-only'} on this node; unpublish and unstage it"
            )
        self._kernel.set_read_only(path, wanted)

    def _device(self, shown: Mapped) -> Device:
        path = self._mapper.node(shown)
        facts = self._marks.read(shown.disk)
        noted = facts.get("blank") if facts.get("image_id") == shown.image_id else None
        return Device(
            path=path,
            number=shown.number,
            proof=shown.proof,
            # Without a note: a device that is then found in use is noted as used, on the image itself.
            blank=BLANKS.get(noted or "", Blank.ZEROED),
            read_only=self._kernel.read_only(shown.disk),
        )
