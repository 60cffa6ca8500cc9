"""Deleted images: they leave their name at once, for the trash, and their data goes in the background.

An image whose clones still need it stays in the trash until the last of them is gone or flattened. That it lies
there is all there is to remember: whoever starts looks through the trash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

from .rbd import Rbd
from .rows import Image
from .shelf import Shelf
from .statuses import Linked, Missing
from .worker import Worker

log = logging.getLogger(__name__)

SWEEP = 300.0  # seconds between two looks through the trash


class Purger:
    """`patient` runs the commands of the background, with all the time that they need."""

    def __init__(self, patient: Rbd, shelves: Iterable[Shelf], *, alone: bool) -> None:
        """`alone`: there are no keys but those that come with a request, so that nothing can wait."""
        self._patient = patient
        self._shelves = tuple(shelves)
        self._alone = alone
        self._worker = Worker("rbd-purge", self._purge)
        self._guard = threading.Lock()
        self._parents: dict[str, str] = {}  # by the id of a discarded image, the id of what it was cloned from
        self._swept = 0.0  # time.monotonic()

    def discard(self, rbd: Rbd, image: Image) -> None:
        """Put an image into the trash, and have it purged. Raises Watched, Linked."""
        with suppress(Missing):  # by an earlier try, or somebody else
            rbd.discard(image.name)
        if image.parent:
            with self._guard:
                self._parents[image.id] = image.parent.id
        if self._alone:
            with suppress(Linked, Missing):
                rbd.purge(image.id)
        else:
            self._worker.ask(image.id)

    def sweep(self, *, now: bool = False) -> None:
        """Look through the trash for what can go by now: rarely, unless it shall be now."""
        if self._alone or (not now and time.monotonic() - self._swept < SWEEP):
            return
        for one in self._patient.trash():
            if any(shelf.leaf_of(one.name) for shelf in self._shelves):
                self._worker.ask(one.id)
        self._swept = time.monotonic()

    def idle(self, seconds: float) -> bool:
        """Wait until what can be purged is; say whether it is."""
        return self._worker.idle(seconds)

    def close(self) -> None:
        self._worker.close()

    def _purge(self, id: str) -> None:
        try:
            self._patient.purge(id)
        except Linked:
            log.debug("image %s in the trash is still needed by clones", id)
            return
        except Missing:
            pass
        with self._guard:
            parent = self._parents.pop(id, "")
        if parent:
            self._worker.ask(parent)  # which may have waited for just this one
