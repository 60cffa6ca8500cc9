"""Listings: one command for all images of the pool, and one for each label that was not read before.

A label never changes, and an image keeps its id, so labels are cached by id.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from csi_multi.contract import FailedPrecondition, Page, PageRequest, paged

from . import labels
from .client import Client
from .errors import ImageNotFound
from .images import OwnedImages
from .labels import Label
from .resources import ListedImage

log = logging.getLogger(__name__)

T = TypeVar("T")
PAGE = 200  # images at most, so that a page does not take too long: each label costs a command
AT_ONCE = 4  # commands


class Listing:
    """Lists the complete images of one kind."""

    def __init__(self, images: OwnedImages, client: Client) -> None:
        self._images = images
        self._client = client
        self._lock = threading.Lock()
        self._labels: dict[str, Label | None] = {}  # by image id; None: another driver's

    def page(
        self,
        request: PageRequest,
        convert: Callable[[ListedImage, Label], T | None],
        listed: Iterable[ListedImage] | None = None,
    ) -> Page[T]:
        """Return one page of what `convert` makes of an image, None to leave it out. Raises InvalidToken.

        `listed` are the images of the pool, where the caller has read them.
        """
        found = self._client.images() if listed is None else listed
        images = {leaf: one for one in found if (leaf := self._images.leaf_of(one.name))}
        present = {one.id for one in images.values()}
        with self._lock:
            self._labels = {id: label for id, label in self._labels.items() if id in present}
        limit = min(request.limit or PAGE, PAGE)

        def load(leaf: str) -> T | None:
            label = self._label(images[leaf])
            try:
                return convert(images[leaf], label) if label else None
            except FailedPrecondition as error:
                log.warning("image %s is left out of the listing: %s", images[leaf].name, error)
                return None

        leaves = sorted(images)
        self._fetch(images[leaf] for leaf in [leaf for leaf in leaves if leaf > request.cursor][: limit + 1])
        return paged(leaves, PageRequest(cursor=request.cursor, limit=limit), load)

    def _fetch(self, images: Iterable[ListedImage]) -> None:
        with self._lock:
            unknown = [one for one in images if one.id not in self._labels]
        if len(unknown) > 1:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rbd-labels") as threads:
                list(threads.map(self._label, unknown))

    def _label(self, image: ListedImage) -> Label | None:
        with self._lock:
            if image.id in self._labels:
                return self._labels[image.id]
        try:
            label = labels.decode(image.name, self._client.metadata(image.name), image.size)
        except ImageNotFound:
            return None
        except FailedPrecondition as error:
            log.warning("image %s is left out of the listing: %s", image.name, error)
            return None
        if label is None:
            return None  # not cached: the image may be completed later
        owned = self._images.owns(label)
        with self._lock:
            self._labels[image.id] = label if owned else None
        return label if owned else None
