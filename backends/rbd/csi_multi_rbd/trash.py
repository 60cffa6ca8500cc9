"""Deletion through Ceph's trash: an image leaves its name at once, and its data is purged in the background.

An image whose clones still need it stays in the trash until the last of them is deleted or flattened. The trash itself
is the only record of that: a driver that starts lists it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from .background import BackgroundWorker
from .client import Client
from .errors import HasDependents, ImageNotFound
from .resources import Image

log = logging.getLogger(__name__)

SWEEP_SECONDS = 300.0  # seconds between two listings of the trash


class TrashPurger:
    """`client` runs its commands in the background, without the time limit of requests."""

    def __init__(self, client: Client, is_ours: Callable[[str], bool], *, immediate: bool) -> None:
        """`is_ours` returns whether an image of this name is the driver's. `immediate`: the instance has no key, so
        nothing can be done after the request that brought one.
        """
        self._client = client
        self._is_ours = is_ours
        self.immediate = immediate
        self._worker = BackgroundWorker("rbd-purge", self._purge)
        self._lock = threading.Lock()
        self._parents: dict[str, str] = {}  # by the id of an image in the trash, the id of its parent
        self._swept = 0.0  # time.monotonic()

    def delete(self, client: Client, image: Image) -> None:
        """Move an image to the trash, and have it purged. Raises ImageInUse, HasDependents."""
        with suppress(ImageNotFound):  # an earlier attempt or another process has done it
            client.move_to_trash(image.name)
        if image.parent:
            with self._lock:
                self._parents[image.id] = image.parent.id
        if self.immediate:
            with suppress(HasDependents, ImageNotFound):
                client.delete_from_trash(image.id)
        else:
            self._worker.submit(image.id)

    def sweep(self, *, now: bool = False) -> None:
        """Purge what nothing needs any more: at most every SWEEP_SECONDS seconds, unless `now`."""
        if self.immediate or (not now and time.monotonic() - self._swept < SWEEP_SECONDS):
            return
        for one in self._client.list_trash():
            if self._is_ours(one.name):
                self._worker.submit(one.id)
        self._swept = time.monotonic()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until everything that can be purged is; return whether it is."""
        return self._worker.wait_until_idle(seconds)

    def close(self) -> None:
        self._worker.close()

    def _purge(self, id: str) -> None:
        try:
            self._client.delete_from_trash(id)
        except HasDependents:
            log.debug("image %s stays in the trash: clones still need it", id)
            return
        except ImageNotFound:
            pass
        with self._lock:
            parent = self._parents.pop(id, "")
        if parent:
            self._worker.submit(parent)  # this may have been the last clone that needed it
