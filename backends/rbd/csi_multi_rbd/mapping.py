"""Map images to devices of this node, by the kernel (krbd) or a process (rbd-nbd), and unmap them."""

from __future__ import annotations

import errno
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from csi_multi.contract import FailedPrecondition, InUse, StorageError, Unavailable
from csi_multi.host.blockdev import BlockDevices

from . import krbd, nbd
from .ceph_rules import MapOptions, merge_options
from .client import Client
from .config import Config
from .errors import CephCommandFailed, ImageLocked
from .resources import Image, MapKind, MappedImage
from .watchers import in_use_elsewhere

log = logging.getLogger(__name__)

KINDS: dict[str, MapKind] = {"rbd": "krbd", "rbd-nbd": "nbd"}  # by the mounter's name
APPEAR_SECONDS = 5.0  # seconds until a device is in /dev
DISAPPEAR_SECONDS = 10.0  # seconds until it disappears: rbd-nbd ends some time after the command to unmap
POLL_SECONDS = 0.05
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


class ImageMapper:
    def __init__(self, config: Config, kernel: BlockDevices, node: str) -> None:
        self._config = config
        self._node = node
        self._kernel = kernel

    def find(self, image: str) -> list[MappedImage]:
        """Return all mappings of an image: more than one, if an earlier process died between two steps."""
        by_process = [mapping for _, mapping in nbd.find(self._kernel, self._config, image)]
        return [*krbd.find(self._kernel, self._config, image), *by_process]

    def map(self, client: Client, image: Image, kind: MapKind, given: MapOptions, *, exclusive: bool) -> MappedImage:
        """Map an image, always for reading and writing: only then it is watched, and so protected from deletion.

        The kernel never locks it exclusively: others could not resize or snapshot it then, and the kernel does not do
        that for them, as rbd-nbd does.
        """
        if kind == "nbd":
            return self._map_by_nbd(
                client, image, given.nbd, exclusive=exclusive and "exclusive-lock" in image.features
            )
        location = self._config.crush_location(self._node)
        return self._map_by_kernel(client, image, krbd.map_options(self._config.monitors, given.krbd, location))

    def attach(self, client: Client, image: str, mapping: MappedImage, given: MapOptions) -> None:
        """Start a new rbd-nbd for a device whose process died. Raises FailedPrecondition when its image is gone."""
        self._refuse_pid_namespace()
        found = client.info(image)
        if found.id != mapping.image_id:
            raise FailedPrecondition(
                f"image {client.spec(image)} was deleted and created again while it was mapped as /dev/{mapping.disk}; "
                "unpublish and unstage the volume"
            )
        client.attach(
            image,
            device=str(self._kernel.dev / mapping.disk),
            exclusive=mapping.exclusive,
            options=merge_options(nbd.OPTIONS, given.nbd),
            cookie=mapping.proof[nbd.COOKIE],
        )
        self._move_to_cgroup(mapping.disk)

    def grow(self, mapping: MappedImage, size: int) -> None:
        """Make the device show the image's size. Raises Unavailable."""
        if mapping.kind == "nbd":
            nbd.resize(int(mapping.disk.removeprefix("nbd")), mapping.proof[nbd.COOKIE], size)
        self.refresh(mapping)

    def refresh(self, mapping: MappedImage) -> None:
        """Make the kernel read the image's size from the cluster, if the kernel maps it."""
        if mapping.kind == "krbd":
            with suppress(Unavailable):  # sysfs may be read-only here; the kernel's watch reports the size, too
                self._kernel.write_attribute(mapping.disk, "device/refresh", "1")

    def unmap(self, client: Client, image: str, mapping: MappedImage, given: MapOptions) -> None:
        """End a mapping. Raises InUse. A failed command is a success if the device is gone."""
        path = self._kernel.node(mapping.disk)
        wanted = (krbd.NO_UDEV, *given.krbd) if mapping.kind == "krbd" else given.nbd
        try:
            client.unmap(str(path or client.spec(image)), kind=mapping.kind, options=wanted)
        except InUse:
            raise
        except StorageError:
            if self._is_mapped(mapping):
                raise
        ends = time.monotonic() + DISAPPEAR_SECONDS
        while self._is_mapped(mapping):
            if time.monotonic() > ends:
                raise Unavailable(f"/dev/{mapping.disk} still exists after it was unmapped; try again")
            time.sleep(POLL_SECONDS)

    def device_path(self, mapping: MappedImage) -> Path:
        """Return the path of the device. Raises FailedPrecondition where /dev does not have it."""
        ends = time.monotonic() + APPEAR_SECONDS
        while (path := self._kernel.node(mapping.disk)) is None:
            if time.monotonic() > ends:
                raise FailedPrecondition(
                    f"{self._kernel.dev / mapping.disk} is not the device node of {mapping.disk} ({mapping.number}): "
                    "the driver's container has a /dev of its own; mount the node's /dev (devtmpfs) into it"
                )
            time.sleep(POLL_SECONDS)
        return path

    def _map_by_nbd(self, client: Client, image: Image, given: tuple[str, ...], *, exclusive: bool) -> MappedImage:
        self._refuse_pid_namespace()
        wanted = merge_options(nbd.OPTIONS, given)
        cookie = nbd.cookie(self._config, image.name, image.id, exclusive=exclusive)
        try:
            device = client.map(
                image.name, kind="nbd", read_only=False, exclusive=exclusive, options=wanted, cookie=str(cookie)
            )
        except CephCommandFailed as error:
            if "failed to acquire exclusive lock" in str(error):  # rbd-nbd has one status for all failures
                raise in_use_elsewhere(client, image.name, client.watchers(image.name)) from None
            raise
        self._move_to_cgroup(Path(device).name)
        try:
            return self._find_mapped(image, device)
        except Unavailable:
            if self._kernel.text(Path(device).name, nbd.COOKIE) is not None:
                raise
            client.unmap(device, kind="nbd")
            raise FailedPrecondition(
                f"kernel {os.uname().release} does not record for what image an nbd device was created: that needs "
                "Linux 5.14 and 'hostNetwork: true' for the driver's pod; or use 'mounter: rbd' in the StorageClass"
            ) from None

    def _map_by_kernel(self, client: Client, image: Image, wanted: tuple[str, ...]) -> MappedImage:
        try:
            device = client.map(image.name, kind="krbd", read_only=False, exclusive=False, options=wanted)
            return self._find_mapped(image, device)
        except ImageLocked:
            raise in_use_elsewhere(client, image.name, client.watchers(image.name)) from None
        except CephCommandFailed as error:
            if error.status == errno.ENXIO:
                raise self._unsupported(client, image) from None
            raise

    def _move_to_cgroup(self, disk: str) -> None:
        """Let the rbd-nbd of a device outlive the driver's container. The volume can be used even if that fails."""
        try:
            nbd.move_to_cgroup(self._kernel, nbd.processes(self._kernel, disk))
        except OSError as error:
            log.warning(
                "the rbd-nbd of /dev/%s ends with the driver's container: it cannot be moved to the node's cgroup %s, "
                "which needs cgroup v2: %s",
                disk,
                nbd.CGROUP,
                error,
            )

    def _find_mapped(self, image: Image, device: str) -> MappedImage:
        for mapping in self.find(image.name):
            if mapping.disk == Path(device).name and mapping.image_id == image.id:
                return mapping
        raise Unavailable(
            f"image {image.name} was mapped as {device}, but the kernel does not show that device; try again"
        )

    def _is_mapped(self, mapping: MappedImage) -> bool:
        return all(self._kernel.text(mapping.disk, name) == text for name, text in mapping.proof.items())

    def _unsupported(self, client: Client, image: Image) -> FailedPrecondition:
        try:
            known = int((self._kernel.sys / "bus/rbd/supported_features").read_text(), 16)
        except (OSError, ValueError):
            known = 0
        missing = sorted(name for name in image.features if not BITS.get(name, 0) & known)
        return FailedPrecondition(
            f"kernel {os.uname().release} cannot map image {client.spec(image.name)} with {', '.join(missing)}; use "
            "'mounter: rbd-nbd', or 'imageFeatures' that the kernel supports, in the StorageClass of new volumes"
        )

    def _refuse_pid_namespace(self) -> None:
        if not nbd.sees_processes(self._kernel):
            raise FailedPrecondition(
                "the driver cannot see the processes of the node, which rbd-nbd needs: set 'hostPID: true' for its "
                "pod, or use 'mounter: rbd' in the StorageClass"
            )
