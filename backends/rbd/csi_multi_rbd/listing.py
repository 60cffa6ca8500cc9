"""Listings: one command for all images of the pool, and one for the label of each that was not seen before.

A label never changes, and an image keeps its id for as long as it lives, so labels are remembered by id.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from csi_multi.contract import FailedPrecondition, Page, PageRequest, paged

from . import stamps
from .rbd import Rbd
from .rows import Listed
from .shelf import Shelf
from .stamps import Label
from .statuses import Missing

log = logging.getLogger(__name__)

T = TypeVar("T")
PAGE = 200  # images at most, so that a page has an end: a label costs a command
AT_ONCE = 4  # commands


class Listing:
    """The finished images of one kind."""

    def __init__(self, shelf: Shelf, rbd: Rbd) -> None:
        self._shelf = shelf
        self._rbd = rbd
        self._guard = threading.Lock()
        self._labels: dict[str, Label | None] = {}  # by image id; None: not ours, for ever

    def page(self, request: PageRequest, told: Callable[[Listed, Label], T | None]) -> Page[T]:
        """Return one page of what `told` makes of an image, None to leave it out. Raises InvalidToken."""
        images = {leaf: one for one in self._rbd.images() if (leaf := self._shelf.leaf_of(one.name))}
        present = {one.id for one in images.values()}
        with self._guard:
            self._labels = {id: label for id, label in self._labels.items() if id in present}
        limit = min(request.limit or PAGE, PAGE)

        def load(leaf: str) -> T | None:
            label = self._label(images[leaf])
            return told(images[leaf], label) if label else None

        leaves = sorted(images)
        self._fetch(images[leaf] for leaf in [leaf for leaf in leaves if leaf > request.cursor][: limit + 1])
        return paged(leaves, PageRequest(cursor=request.cursor, limit=limit), load)

    def _fetch(self, images: Iterable[Listed]) -> None:
        with self._guard:
            unknown = [one for one in images if one.id not in self._labels]
        if len(unknown) > 1:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rbd-labels") as threads:
                list(threads.map(self._label, unknown))

    def _label(self, image: Listed) -> Label | None:
        with self._guard:
            if image.id in self._labels:
                return self._labels[image.id]
        try:
            label = stamps.read(image.name, self._rbd.metadata(image.name), image.size)
        except Missing:
            return None
        except FailedPrecondition as error:
            log.warning("left out of the listing: %s", error)
            return None
        if label is None:
            return None  # it may be finished yet
        ours = self._shelf.owns(label)
        with self._guard:
            self._labels[image.id] = label if ours else None
        return label if ours else None
