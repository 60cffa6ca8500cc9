"""Quiesce a volume while its image is copied: during the copy it is not attached, and nothing writes to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Busy, FailedPrecondition, Freeze
from csi_multi.host import loopfile

from .client import sync_path
from .health import complete_size
from .image_usage import allocated
from .labels import VolumeLabel
from .store import Store, loop_devices

log = logging.getLogger(__name__)

REFLINK_SECONDS, COPY_SECONDS = 600.0, 86400.0  # for which a filesystem stays frozen at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiescer:
    volumes: Store[VolumeLabel]
    frozen: Freeze

    @contextmanager
    def source(self, leaf: str) -> Iterator[VolumeLabel]:
        """Keep the source of a copy from being attached, changed or deleted. Raises NotFound, Busy.

        A volume that is not attached may be copied by many at a time; an attached one has to be frozen, by one.
        """
        image = self.volumes.image(leaf)
        attached = bool(loop_devices(image))
        with self.volumes.locked(leaf, shared=not attached):
            if not attached and loop_devices(image):
                raise Busy(f"volume {leaf!r} has just been attached; try again")
            label = self.volumes.read(leaf)
            complete_size(image, label.size)
            yield label

    @contextmanager
    def quiesced(self, leaf: str, reflink: bool) -> Iterator[None]:
        """For the block, the image of a locked volume holds all writes so far, and none in part."""
        image = self.volumes.image(leaf)
        devices = loop_devices(image)
        if mounted := [device for device in devices if loopfile.mounted(device)]:
            with _logged_freeze(leaf, image, reflink), ExitStack() as frozen:
                for device in mounted:  # which writes everything out first
                    frozen.enter_context(self.frozen(device, REFLINK_SECONDS if reflink else COPY_SECONDS))
                yield
            return
        if devices and not reflink:
            raise FailedPrecondition(
                f"volume {leaf!r} is attached as raw block device {devices[0]}, and the filesystem of its directory "
                "cannot copy it as of one moment; unpublish and unstage it first, or keep the directory on xfs or btrfs"
            )
        for device in devices:
            sync_path(device)  # what was written to the device node, and is cached there
        yield


@contextmanager
def _logged_freeze(leaf: str, image: Path, reflink: bool) -> Iterator[None]:
    """Say in the log when, and for how long, the users of a volume have to wait for a whole copy."""
    if not reflink:
        log.warning(
            "volume %s: its filesystem is frozen, and what writes to it waits, until %d MiB are copied, because files "
            "of its directory's filesystem cannot share blocks; keep the directory on xfs or btrfs",
            leaf,
            allocated(image.stat()) >> 20,
        )
    started = time.monotonic()
    yield
    if not reflink:
        log.warning("volume %s: its filesystem was frozen for %.1f s", leaf, time.monotonic() - started)
