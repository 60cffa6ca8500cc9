"""Flattening: images with too many ancestors, or too many clones, get their own copy of the data they share.

ceph-mgr does it from a queue of its own, which survives every process. Where it cannot, a thread of the driver does;
the images themselves record what is left: a parent, and a label with too many ancestors.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from csi_multi.contract import FailedPrecondition

from .background import BackgroundWorker
from .client import Client, ClusterClient
from .config import Config
from .errors import BrokenImage, ImageNotFound, ObjectNotFound, ParentLost
from .images import OwnedImages
from .resources import ListedImage

log = logging.getLogger(__name__)

CHILDREN_AT_ONCE = 4  # clones of one image that are flattened because it has too many snapshots


class Flattener:
    """`cluster` and `client` run their commands in the background, without the time limit of requests."""

    def __init__(self, config: Config, cluster: ClusterClient, client: Client, kinds: tuple[OwnedImages, ...]) -> None:
        self._config = config
        self._cluster = cluster
        self._client = client
        self._kinds = kinds
        self._worker = BackgroundWorker("rbd-flatten", self._flatten)
        self._unsure: set[str] = set()  # images that are flattened only if their labels say so

    def schedule(self, image: str) -> None:
        """Have an image flattened in the background. Never fails: `resume` finds it again."""
        if not self._config.keyring:
            log.warning(
                "image %s has many ancestors, and this instance has no keyring to flatten it; run 'rbd flatten' by "
                "hand",
                self._client.spec(image),
            )
            return
        self._worker.submit(image)

    def flatten_children(self, client: Client, image: str) -> None:
        """Have some clones of an image flattened: each needs one snapshot of it. Best effort."""
        try:
            children = client.children(image)
        except ObjectNotFound as error:
            log.warning("the clones of image %s cannot be listed: %s", image, error)  # it names one that is not there
            return
        for child in children[:CHILDREN_AT_ONCE]:
            self.schedule(child)

    def resume(self, listed: Iterable[ListedImage]) -> None:
        """Schedule what an earlier process left, by a listing of the pool.

        The ancestors of an image are counted in the listing. One that is not listed is in the trash, or has another
        name: then the image's label says how many it has at most, and the background reads it.
        """
        parents = {one.name: one.parent for one in listed}
        for name in parents:
            if not any(images.leaf_of(name) for images in self._kinds):
                continue
            depth, complete = _ancestors(name, parents)
            if depth >= self._config.flatten_depth:
                self.schedule(name)
            elif not complete:
                self._unsure.add(name)
                self.schedule(name)

    def close(self) -> None:
        self._worker.close()

    def _flatten(self, image: str) -> None:
        if image in self._unsure:
            needed = self._has_too_many(image)
            self._unsure.discard(image)
            if not needed:
                return
        if self._cluster.queue_flatten(self._client.spec(image)):
            return
        try:
            self._client.flatten(image)
        except ImageNotFound:
            log.debug("image %s was deleted or flattened in the meantime", image)

    def _has_too_many(self, image: str) -> bool:
        """Return whether an image has too many ancestors by its label."""
        images = next(kind for kind in self._kinds if kind.leaf_of(image))
        try:
            found = images.find(self._client, images.leaf_of(image))
        except (FailedPrecondition, BrokenImage, ParentLost) as error:
            log.warning("image %s is not flattened, because it cannot be read: %s", image, error)
            return False
        return found is not None and found.ancestors >= self._config.flatten_depth


def _ancestors(image: str, parents: Mapping[str, str]) -> tuple[int, bool]:
    """Return how many ancestors of an image are known, and whether these are all."""
    depth = 0
    while (parent := parents[image]) and depth < len(parents):
        depth += 1
        if parent not in parents:
            return depth, False
        image = parent
    return depth, True
