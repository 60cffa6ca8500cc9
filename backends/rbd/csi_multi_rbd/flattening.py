"""Keep images from hanging on too many others: they get a copy of their own of all that they share.

Ceph's manager does it, from a queue of its own that outlives everybody. Where it cannot, a thread here does, and
what there is to do stands on the image: a label with too many ancestors, and a parent.
"""

from __future__ import annotations

import logging

from .ceph import Ceph
from .config import Config
from .rbd import Rbd
from .shelf import Shelf
from .statuses import Missing
from .worker import Worker

log = logging.getLogger(__name__)

AT_ONCE = 4  # children of one image that are flattened because it has too many snapshots


class Flattener:
    """`ceph` and `patient` run the commands of the background."""

    def __init__(self, config: Config, ceph: Ceph, patient: Rbd, shelves: tuple[Shelf, ...]) -> None:
        self._config = config
        self._ceph = ceph
        self._patient = patient
        self._shelves = shelves
        self._worker = Worker("rbd-flatten", self._flatten)
        self._resumed = False

    def soon(self, image: str) -> None:
        """Have an image flattened, without waiting for anybody. Never fails: resume comes back to it."""
        if not self._config.keyring:
            log.warning("image %s has many ancestors: flatten it, for which this instance has no keyring", image)
            return
        self._worker.ask(image)

    def relieve(self, rbd: Rbd, image: str) -> None:
        """Have some of its clones flattened: each holds one snapshot of the image."""
        for child in rbd.children(image)[:AT_ONCE]:
            self.soon(child)

    def resume(self) -> None:
        """Take up what an earlier process left, once."""
        if self._resumed:
            return
        for one in self._patient.images():
            shelf = next((shelf for shelf in self._shelves if shelf.leaf_of(one.name)), None)
            if shelf is None or not one.parent:
                continue
            found = shelf.look(self._patient, shelf.leaf_of(one.name))
            if found and found.parents >= self._config.flatten_depth:
                self.soon(one.name)
        self._resumed = True

    def close(self) -> None:
        self._worker.close()

    def _flatten(self, image: str) -> None:
        if self._ceph.flatten_later(self._patient.spec(image)):
            return
        try:
            self._patient.flatten(image)
        except Missing:
            log.debug("image %s is gone, or flat", image)
