"""Flattening: images with too many ancestors, or too many clones, get their own copy of the data they share.

ceph-mgr does it from a queue of its own, which survives every process. Where it cannot, a thread of the driver does;
the images themselves record what is left: a parent, and a label with too many ancestors.
"""

from __future__ import annotations

import logging

from csi_multi.contract import FailedPrecondition

from .background import BackgroundWorker
from .client import Client, ClusterClient
from .config import Config
from .errors import BrokenImage, ImageNotFound, ObjectNotFound, ParentLost
from .images import OwnedImages

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
        self._resumed = False

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

    def resume(self) -> None:
        """Schedule what an earlier process left, once."""
        if self._resumed:
            return
        for one in self._client.images():
            images = next((kind for kind in self._kinds if kind.leaf_of(one.name)), None)
            if images is None or not one.parent:
                continue
            try:
                found = images.find(self._client, images.leaf_of(one.name))
            except (FailedPrecondition, BrokenImage, ParentLost) as error:
                log.warning("image %s is not flattened, because it cannot be read: %s", one.name, error)
                continue
            if found and found.ancestors >= self._config.flatten_depth:
                self.schedule(one.name)
        self._resumed = True

    def close(self) -> None:
        self._worker.close()

    def _flatten(self, image: str) -> None:
        if self._cluster.queue_flatten(self._client.spec(image)):
            return
        try:
            self._client.flatten(image)
        except ImageNotFound:
            log.debug("image %s was deleted or flattened in the meantime", image)
