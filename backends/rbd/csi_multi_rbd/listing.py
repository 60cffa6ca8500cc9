"""Listings: one command for all images of the pool, and one for each label that was not read within the hour.

The command opens every image, so what it said is kept for the pages that follow. A page of a listing that is not kept
any more comes from a new one: its cursor is a name.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from csi_multi.contract import FailedPrecondition, InvalidToken, Page, PageRequest, paged

from .client import Client
from .errors import ImageNotFound
from .images import OwnedImages
from .label_cache import LISTED_SECONDS
from .labels import Label
from .resources import ListedImage

log = logging.getLogger(__name__)

T = TypeVar("T")
PAGE = 200  # images at most, so that a page does not take too long: each label costs a command
AT_ONCE = 4  # commands
KEPT_SECONDS = 600.0  # after the last page that was read of a listing
MOST_IMAGES = 50_000  # of all listings that are kept, unless a single one has more


@dataclass(frozen=True, slots=True)
class SortedListing:
    """The images of one kind in the pool, by leaf, and the ids of all images by name."""

    leaves: list[str]
    images: Mapping[str, ListedImage]
    ids: Mapping[str, str]


def page_across(parts: Mapping[str, Callable[[PageRequest], Page[T]]], request: PageRequest) -> Page[T]:
    """Return one page of several listings, which follow each other. A cursor is that of one of them, behind its name.

    Raises InvalidToken.
    """
    name, slash, cursor = request.cursor.rpartition("/")
    if (name := name + slash) not in parts:
        raise InvalidToken(f"cursor {request.cursor!r} was not issued by this backend; list again from the start")
    limit = min(request.limit or PAGE, PAGE)
    items: list[T] = []
    names = [*parts]
    for one in names[names.index(name) :]:
        if len(items) == limit:
            return Page(items=tuple(items), cursor=one)
        page = parts[one](PageRequest(cursor=cursor, limit=limit - len(items)))
        items += page.items
        if page.cursor:
            return Page(items=tuple(items), cursor=one + page.cursor)
        cursor = ""
    return Page(items=tuple(items))


class Listing:
    """Lists the complete images of one kind. Thread-safe."""

    def __init__(self, images: OwnedImages, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._images = images
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, SortedListing]] = OrderedDict()  # by the cursor of the next page

    def page(
        self, request: PageRequest, convert: Callable[[ListedImage, Label, Mapping[str, str]], T | None]
    ) -> Page[T]:
        """Return one page of what `convert` makes of an image, its label and the ids of the pool's images; None leaves
        it out. Raises InvalidToken.
        """
        listing = self._kept_for(request.cursor) or self._read()
        limit = min(request.limit or PAGE, PAGE)

        def load(leaf: str) -> T | None:
            image = listing.images[leaf]
            label = self._label(image)
            try:
                return convert(image, label, listing.ids) if label else None
            except FailedPrecondition as error:
                log.warning("image %s is left out of the listing: %s", image.name, error)
                return None

        following = [leaf for leaf in listing.leaves if leaf > request.cursor][: limit + 1]
        self._fetch(listing.images[leaf] for leaf in following)
        page = paged(listing.leaves, PageRequest(cursor=request.cursor, limit=limit), load)
        if page.cursor:
            self._keep(page.cursor, listing)
        return page

    def _read(self) -> SortedListing:
        found = self._client.images()
        images = {leaf: one for one in found if (leaf := self._images.leaf_of(one.name))}
        return SortedListing(sorted(images), images, {one.name: one.id for one in found})

    def _kept_for(self, cursor: str) -> SortedListing | None:
        with self._lock:
            at, listing = self._kept.get(cursor, (0.0, None))
        return listing if listing and self._clock() - at < KEPT_SECONDS else None

    def _keep(self, cursor: str, listing: SortedListing) -> None:
        now = self._clock()
        with self._lock:
            for old in [one for one, (at, _) in self._kept.items() if now - at >= KEPT_SECONDS or one == cursor]:
                del self._kept[old]
            self._kept[cursor] = (now, listing)
            while len(self._kept) > 1 and self._images_kept() > MOST_IMAGES:
                self._kept.popitem(last=False)

    def _images_kept(self) -> int:
        """Return how many images the listings have; those of several pages are counted once."""
        return sum(len(one.ids) for one in {id(kept): kept for _, kept in self._kept.values()}.values())

    def _fetch(self, images: Iterable[ListedImage]) -> None:
        unknown = [one for one in images if self._images.cache.get(one.name, one.id, LISTED_SECONDS) is None]
        if len(unknown) > 1:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rbd-labels") as threads:
                list(threads.map(self._label, unknown))

    def _label(self, image: ListedImage) -> Label | None:
        try:
            return self._images.label_of(self._client, image, LISTED_SECONDS)
        except ImageNotFound:
            return None
        except FailedPrecondition as error:
            log.warning("image %s is left out of the listing: %s", image.name, error)
            return None
