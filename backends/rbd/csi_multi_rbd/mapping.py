"""Make an image a device of this node, and end that: by the kernel (krbd) or a process (rbd-nbd)."""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from csi_multi.contract import FailedPrecondition, InUse, StorageError, Unavailable
from csi_multi.host.blockdev import BlockDevices

from . import apart, krbd, nbd, netlink, options
from .alone import elsewhere
from .config import Config
from .mapped import Mapped
from .options import Options
from .rbd import Kind, Rbd
from .rows import Image
from .statuses import Locked, Refused

log = logging.getLogger(__name__)

KINDS: dict[str, Kind] = {"rbd": "krbd", "rbd-nbd": "nbd"}  # by the mounter's name
APPEAR = 5.0  # seconds until a device is in /dev
VANISH = 10.0  # seconds until it is gone: rbd-nbd is told, and ends by itself
STEP = 0.05
BITS = {  # of /sys/bus/rbd/supported_features; rbd_types.h in the kernel
    "layering": 1 << 0,
    "striping": 1 << 1,
    "exclusive-lock": 1 << 2,
    "object-map": 1 << 3,
    "fast-diff": 1 << 4,
    "deep-flatten": 1 << 5,
    "journaling": 1 << 6,
    "data-pool": 1 << 7,
    "operations": 1 << 8,
    "migrating": 1 << 9,
}


class Mapper:
    def __init__(self, config: Config, kernel: BlockDevices) -> None:
        self._config = config
        self._kernel = kernel

    def of(self, image: str) -> list[Mapped]:
        """Return all mappings of an image: more than one, when somebody died between two."""
        by_process = [shown for _, shown in nbd.mapped(self._kernel, self._config, image)]
        return [*krbd.mapped(self._kernel, self._config, image), *by_process]

    def map(self, rbd: Rbd, image: Image, kind: Kind, given: Options, *, exclusive: bool) -> Mapped:
        """Map it for reading and writing: only then its watch keeps others from deleting it.

        The kernel never takes the lock for good: neither can others resize or snapshot then, nor does it do
        that for them, as rbd-nbd does.
        """
        if kind == "nbd":
            return self._by_process(rbd, image, given.nbd, exclusive=exclusive and "exclusive-lock" in image.features)
        return self._by_kernel(rbd, image, krbd.options(self._config.monitors, given.krbd))

    def attach(self, rbd: Rbd, image: str, shown: Mapped, given: Options) -> None:
        """Start another rbd-nbd for a device whose process died. Raises FailedPrecondition when its image is gone."""
        self._refuse_container()
        found = rbd.info(image)
        if found.id != shown.image_id:
            raise FailedPrecondition(
                f"image {rbd.spec(image)} was replaced by another of that name while /dev/{shown.disk} showed it"
            )
        rbd.attach(
            image,
            device=str(self._kernel.dev / shown.disk),
            exclusive=shown.exclusive,
            options=options.merged(nbd.OPTIONS, given.nbd),
            cookie=shown.proof[nbd.COOKIE],
        )
        self._set_apart(shown.disk)

    def grow(self, shown: Mapped, size: int) -> None:
        """Let the device show the image's size. Raises Unavailable."""
        if shown.kind == "nbd":
            netlink.resize(int(shown.disk.removeprefix("nbd")), shown.proof[nbd.COOKIE], size)
        self.look(shown)

    def look(self, shown: Mapped) -> None:
        """Have the kernel ask the cluster for the image's size: for what it maps itself."""
        if shown.kind == "krbd":
            with suppress(Unavailable):  # a container may see a sysfs it cannot write; the image's watch tells, too
                self._kernel.write_attribute(shown.disk, "device/refresh", "1")

    def unmap(self, rbd: Rbd, image: str, shown: Mapped, given: Options) -> None:
        """Raises InUse. A command that was killed has ended the mapping too, when the device is gone."""
        path = self._kernel.node(shown.disk)
        wanted = (krbd.NO_UDEV, *given.krbd) if shown.kind == "krbd" else given.nbd
        try:
            rbd.unmap(str(path or rbd.spec(image)), kind=shown.kind, options=wanted)
        except InUse:
            raise
        except StorageError:
            if self._there(shown):
                raise
        ends = time.monotonic() + VANISH
        while self._there(shown):
            if time.monotonic() > ends:
                raise Unavailable(f"/dev/{shown.disk} is still there after it was unmapped; try again")
            time.sleep(STEP)

    def node(self, shown: Mapped) -> Path:
        """Raises FailedPrecondition without a /dev that shows it."""
        ends = time.monotonic() + APPEAR
        while (path := self._kernel.node(shown.disk)) is None:
            if time.monotonic() > ends:
                raise FailedPrecondition(
                    f"{self._kernel.dev / shown.disk} is no node of the device {shown.disk} ({shown.number}) that the "
                    "kernel shows: the driver's container has a /dev of its own; mount the node's /dev (devtmpfs) there"
                )
            time.sleep(STEP)
        return path

    def _by_process(self, rbd: Rbd, image: Image, given: tuple[str, ...], *, exclusive: bool) -> Mapped:
        self._refuse_container()
        wanted = options.merged(nbd.OPTIONS, given)
        cookie = nbd.cookie(self._config, image.name, image.id, exclusive=exclusive)
        try:
            device = rbd.map(
                image.name, kind="nbd", read_only=False, exclusive=exclusive, options=wanted, cookie=str(cookie)
            )
        except Refused as error:
            if "failed to acquire exclusive lock" in str(error):  # its status is the same for everything
                raise elsewhere(rbd, image.name, rbd.watchers(image.name)) from None
            raise
        self._set_apart(Path(device).name)
        try:
            return self._awaited(image, device)
        except Unavailable:
            if self._kernel.text(Path(device).name, nbd.COOKIE) is not None:
                raise
            rbd.unmap(device, kind="nbd")
            raise FailedPrecondition(
                f"kernel {os.uname().release} does not keep what an nbd device was made for: that needs Linux 5.14 and "
                "'hostNetwork: true' for the driver's pod; or use 'mounter: rbd' in the StorageClass"
            ) from None

    def _by_kernel(self, rbd: Rbd, image: Image, wanted: tuple[str, ...]) -> Mapped:
        try:
            device = rbd.map(image.name, kind="krbd", read_only=False, exclusive=False, options=wanted)
            return self._awaited(image, device)
        except Locked:
            raise elsewhere(rbd, image.name, rbd.watchers(image.name)) from None
        except Refused as error:
            if error.status == errno.ENXIO:
                raise self._unsupported(rbd, image) from None
            raise

    def _set_apart(self, disk: str) -> None:
        """Let its rbd-nbd outlive the driver's container. Where that cannot be, the volume can be used all the same."""
        try:
            apart.move(self._kernel, nbd.serving(self._kernel, disk))
        except OSError as error:
            log.warning(
                "the rbd-nbd of /dev/%s ends with the driver's container: it was not moved to the node's cgroup %s, "
                "which takes cgroup v2: %s",
                disk,
                apart.CGROUP,
                error,
            )

    def _awaited(self, image: Image, device: str) -> Mapped:
        for shown in self.of(image.name):
            if shown.disk == Path(device).name and shown.image_id == image.id:
                return shown
        raise Unavailable(
            f"image {image.name} was mapped as {device}, but the kernel does not show it there; try again"
        )

    def _there(self, shown: Mapped) -> bool:
        return all(self._kernel.text(shown.disk, name) == text for name, text in shown.proof.items())

    def _unsupported(self, rbd: Rbd, image: Image) -> FailedPrecondition:
        try:
            known = int((self._kernel.sys / "bus/rbd/supported_features").read_text(), 16)
        except (OSError, ValueError):
            known = 0
        lacking = sorted(name for name in image.features if not BITS.get(name, 0) & known)
        return FailedPrecondition(
            f"kernel {os.uname().release} cannot map image {rbd.spec(image.name)} with {', '.join(lacking)}; use "
            "'mounter: rbd-nbd', or 'imageFeatures' that the kernel knows, in the StorageClass of new volumes"
        )

    def _refuse_container(self) -> None:
        if not nbd.sees_processes(self._kernel):
            raise FailedPrecondition(
                "rbd-nbd needs the driver to see the node's processes: set 'hostPID: true' for its pod, or use "
                "'mounter: rbd' in the StorageClass"
            )
