"""Deletion through Ceph's trash: an image leaves its name at once, and its data is purged in the background.

An image whose clones still need it stays in the trash until the last of them is deleted or flattened. The trash itself
is the only record of that: a driver that starts lists it. An image can be moved there while another process cuts the
snapshot for a copy of it: that snapshot goes before the image, and then the copy either has its data or fails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress

from .background import BackgroundWorker
from .client import Client
from .errors import HasDependents, ImageNotFound
from .resources import Image, TrashEntry

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0  # seconds between two listings of the trash
AGAIN = ""  # a task of its own: to try what clones were found to need
LONGEST = 3600.0  # seconds: an image that clones still need is tried again after twice the time, up to this


class TrashPurger:
    """`client` runs its commands in the background, without the time limit of requests."""

    remove_snapshots: Callable[[Client, str], bool]  # of an image by its id, if they are ours; whether there were any

    def __init__(self, client: Client, is_ours: Callable[[str], bool], *, immediate: bool) -> None:
        """`is_ours` returns whether an image of this name is the driver's. `immediate`: the instance has no key, so
        nothing can be done after the request that brought one. `remove_snapshots` is set before the first use.
        """
        self._client = client
        self._is_ours = is_ours
        self.immediate = immediate
        self._worker = BackgroundWorker("rbd-purge", self._purge)
        self._lock = threading.Lock()
        self._parents: dict[str, str] = {}  # by the id of an image in the trash, the id of its parent, "": none
        self._needed: dict[str, tuple[float, float]] = {}  # by id: when to try again, and the pause until then
        self._listed: set[str] = set()  # of these, whose clones were listed
        self._swept = 0.0  # time.monotonic()

    def delete(self, client: Client, image: Image) -> None:
        """Move an image to the trash, and have it purged. Raises ImageInUse, HasDependents."""
        with suppress(ImageNotFound):  # an earlier attempt or another process has done it
            client.move_to_trash(image.name)
        if self.immediate:
            with suppress(HasDependents, ImageNotFound):
                self._delete(client, image.id)
            return
        with self._lock:
            self._parents[image.id] = image.parent.id if image.parent else ""
        self._worker.submit(image.id)

    def sweep(self, *, now: bool = False, parents: Container[str] | None = None) -> None:
        """Purge what nothing needs any more: at most every SWEEP_SECONDS seconds, unless `now`.

        An image that clones were found to need is tried again from time to time: ceph-mgr may have flattened them.
        `parents` are names of images that have clones, as a listing shows; others are tried at once.
        """
        if self.immediate or (not now and time.monotonic() - self._swept < SWEEP_SECONDS):
            return
        ours = [one for one in self._client.list_trash() if self._is_ours(one.name)]
        if parents is not None:
            self._compare(ours, parents)
        present, due = {one.id for one in ours}, time.monotonic()
        with self._lock:
            self._needed = {id: when for id, when in self._needed.items() if id in present}
            self._listed &= present
            below = {parent for id, parent in self._parents.items() if id in present}  # these go first
            waiting = {id for id, (at, _) in self._needed.items() if at > due} | below
        for one in ours:
            if one.id not in waiting:
                self._worker.submit(one.id)
        self._swept = time.monotonic()

    def _compare(self, ours: Iterable[TrashEntry], parents: Container[str]) -> None:
        """Note which images need not be tried, and forget it of those whose clones have been flattened since."""
        for one in ours:
            if one.name not in parents:
                with self._lock:
                    self._needed.pop(one.id, None)
            elif one.id not in self._needed:
                self._note_needed(one.id, listed=True)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until everything that can be purged is; return whether it is."""
        return self._worker.wait_until_idle(seconds)

    def close(self) -> None:
        self._worker.close()

    def _purge(self, id: str) -> None:
        if id == AGAIN:
            with self._lock:
                unknown = self._needed.keys() - self._listed
            for one in unknown:
                self._worker.submit(one)
            return
        try:
            self._delete(self._client, id)
        except HasDependents:
            log.debug("image %s stays in the trash: clones still need it", id)
            self._note_needed(id)
            return
        except ImageNotFound:
            pass
        with self._lock:
            self._needed.pop(id, None)
            parent = self._parents.pop(id, None)
        if parent is None:
            self._worker.submit(AGAIN)  # an earlier process moved it to the trash, perhaps with the images above it
        elif parent:
            self._worker.submit(parent)  # this may have been the last clone that needed it

    def _delete(self, client: Client, id: str) -> None:
        """Raises HasDependents, ImageNotFound, ImageInUse."""
        try:
            client.delete_from_trash(id)
        except HasDependents:
            if not self.remove_snapshots(client, id):
                raise
            client.delete_from_trash(id)

    def _note_needed(self, id: str, *, listed: bool = False) -> None:
        with self._lock:
            if listed:
                self._listed.add(id)
            _, pause = self._needed.get(id, (0.0, SWEEP_SECONDS / 2))
            pause = min(2 * pause, LONGEST)
            self._needed[id] = (time.monotonic() + pause, pause)
