"""Hold a volume still while its image is copied: nobody attaches it, nobody writes to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from csi_multi.contract import Busy, FailedPrecondition, StorageError
from csi_multi.host import loopdev, loopfile

from .freeze import Freezer
from .health import refuse_incomplete
from .metadata import VolumeFile, sync
from .shelf import Shelf

log = logging.getLogger(__name__)


class Stillness:
    def __init__(self, volumes: Shelf[VolumeFile], freezer: Freezer) -> None:
        self._volumes = volumes
        self._freezer = freezer

    @contextmanager
    def holding(self, leaf: str) -> Iterator[VolumeFile]:
        """Keep a source from being attached, changed or deleted. Raises NotFound, Busy.

        Many may copy a volume that is not attached; one that is attached has to be frozen, by one.
        """
        image = self._volumes.image(leaf)
        attached = bool(loopdev.find(image))
        with self._volumes.holding(leaf, shared=not attached):
            if not attached and loopdev.find(image):
                raise Busy(f"volume {leaf!r} has just been attached; ask again")
            found = self._volumes.read(leaf)
            refuse_incomplete(image, found.size)
            yield found

    @contextmanager
    def still(self, leaf: str, reflink: bool) -> Iterator[None]:
        """Have everything written so far in the image of a held volume, and nothing half-written."""
        image = self._volumes.image(leaf)
        attached = loopdev.find(image)
        places = [place for device in attached for place in loopfile.mounted(device)]
        if places:
            with self._freezer.frozen(leaf, places):  # which writes everything out first
                yield
            return
        if attached and not reflink:
            raise FailedPrecondition(
                f"volume {leaf!r} is attached as raw block device {attached[0]}, and its directory's filesystem "
                "cannot copy it in one moment; unpublish and unstage it first, or keep the directory on xfs or btrfs"
            )
        for device in attached:
            sync(device)  # what was written to the device node, and is cached there
        yield

    def thaw_leftovers(self) -> None:
        """Thaw what a process froze and did not live to thaw. What a living one froze is left alone."""
        for leaf in self._freezer.marked():
            image = self._volumes.image(leaf)
            try:
                with self._volumes.holding(leaf):
                    self._freezer.lift(leaf, loopdev.find(image))
            except Busy:
                continue
            except StorageError as error:
                log.error("volume %s may still be frozen: %s", leaf, error)
