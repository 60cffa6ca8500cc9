"""The images under the driver's names: complete ones are volumes and snapshots, incomplete ones are removed
(removal.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InvalidArgument,
    Setting,
    StorageError,
    Strings,
    Timeout,
    Unavailable,
    ids,
    missing,
)

from . import ceph_rules, label_cache, labels
from .ceph_rules import features_problem
from .client import Client
from .config import Config, Parameters, SnapshotParameters
from .errors import ImageNotFound
from .label_cache import LabelCache
from .labels import Label
from .last_look import LastLook
from .resources import Image, ImageLayout, ListedImage
from .side_by_side import both

ATTEMPTS = 3  # to create an image whose name was taken


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """An image that is to be created."""

    name: str
    size: int
    layout: ImageLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundImage:
    """An image under one of the driver's names. Without a label it is incomplete."""

    image: Image
    label: Label | None

    @property
    def ancestors(self) -> int:
        """The number of its ancestors, at most: one that was flattened since has none."""
        return self.label.depth if self.label and self.image.parent else 0


class ImageExists(AlreadyExists):
    """A complete image has the name."""

    def __init__(self, text: str, image: Image, label: Label) -> None:
        super().__init__(text)
        self.image = image
        self.label = label


class OwnedImages:
    """The images of one kind, volumes or snapshots, that belong to this driver. `place` begins their handles."""

    def __init__(self, kind: str, setting: Setting, place: str = "") -> None:
        self.kind = kind
        self.place = place
        self.cache = LabelCache()
        self._last_look = LastLook()
        self.prefix = labels.name_prefix(kind, setting.driver, setting.cluster)
        self._setting = setting

    def name(self, leaf: str) -> str:
        """Return the name of the image."""
        return self.prefix + leaf

    def leaf_of(self, image: str) -> str:
        """Return the leaf in an image's name, "" when the name is not the driver's."""
        leaf = image.removeprefix(self.prefix)
        return leaf if leaf != image and ids.LEAF_SHAPE.fullmatch(leaf) else ""

    def leaf(self, handle: str) -> str:
        """Raises NotFound for one of a shape that the driver never creates, and for one of another pool."""
        return labels.checked_leaf(self.kind, handle, self.place)

    def handle(self, leaf: str) -> str:
        return self.place + leaf

    def find(self, client: Client, leaf: str) -> FoundImage | None:
        """Return the image with this name, complete or not. Raises FailedPrecondition for another driver's."""
        return self._found(client, leaf, lambda client, name: client.info(name))

    def _found(self, client: Client, leaf: str, look: Callable[[Client, str], Image]) -> FoundImage | None:
        name = self.name(leaf)
        try:
            image = look(client, name)
            return FoundImage(image=image, label=self.label_of(client, image))
        except ImageNotFound:
            self.cache.forget(name)
            return None

    def find_anew(self, client: Client, leaf: str) -> FoundImage | None:
        """Do as `find` does with the label as it is now, whatever was read before: for what is to be deleted."""
        name = self.name(leaf)
        try:
            if self.cache.seen(name):  # so it is there, and the second command is not in vain
                image, metadata = both(lambda: client.info(name), lambda: client.metadata(name))
            else:
                image, metadata = client.info(name), client.metadata(name)
        except ImageNotFound:
            self.cache.forget(name)
            return None
        self.cache.forget(name)  # and do not keep this label: at the same time, the two may be of different images
        return FoundImage(image=image, label=self.label(client, name, metadata, image.size))

    def label_of(
        self, client: Client, image: Image | ListedImage, seconds: float = label_cache.MAX_SECONDS
    ) -> Label | None:
        """Return the label of an image that was just looked up, see `label`; perhaps as it was so many seconds ago.

        Raises ImageNotFound.
        """
        if image.size >= labels.SMALLEST and (label := self.cache.get(image.name, image.id, seconds)):
            return self._own(client, label)
        return self._read(client, image)[0]

    def _read(self, client: Client, image: Image | ListedImage) -> tuple[Label | None, dict[str, str]]:
        """Return the label and all image-meta as they are now."""
        metadata = client.metadata(image.name)
        self.cache.forget(image.name)  # also where the label is damaged now
        label = labels.decode(image.name, metadata, image.size)
        if label is None:
            return None, metadata
        self.cache.put(image.id, label)
        return self._own(client, label), metadata

    def label(self, client: Client, name: str, metadata: Strings, size: int) -> Label | None:
        """Return the label of an image; None while it is incomplete. Raises FailedPrecondition for another driver's."""
        label = labels.decode(name, metadata, size)
        return label and self._own(client, label)

    def _own(self, client: Client, label: Label) -> Label:
        if self.owns(label):
            return label
        raise FailedPrecondition(
            f"image {client.spec(label.image)} belongs to driver {label.stamp.driver!r} in cluster "
            f"{label.stamp.cluster!r}, and this driver does not change it; give each driver on a "
            "pool its own driver.name or driver.cluster"
        )

    def owns(self, label: Label) -> bool:
        return (label.stamp.driver, label.stamp.cluster) == (self._setting.driver, self._setting.cluster)

    def get(self, client: Client, leaf: str) -> tuple[FoundImage, Label]:
        """Return a complete image. Raises NotFound, FailedPrecondition for another driver's."""
        return self._complete(leaf, self.find(client, leaf))

    def get_before_copy(self, client: Client, leaf: str) -> Label:
        """Return the label of an image that this thread is about to copy or to expand. Raises as `get` does."""
        return self._complete(leaf, self._found(client, leaf, self._last_look.info))[1]

    def get_source(self, client: Client, leaf: str) -> FoundImage:
        """Return a complete image to copy or to expand, perhaps as `get_before_copy` found it. Raises as `get` does."""
        return self._complete(leaf, self._found(client, leaf, self._last_look.take))[0]

    def _complete(self, leaf: str, found: FoundImage | None) -> tuple[FoundImage, Label]:
        if found is None or found.label is None:
            raise missing(self.kind, self.handle(leaf))
        return found, found.label

    def get_metadata(self, client: Client, leaf: str) -> tuple[Image, Label, dict[str, str]]:
        """Return a complete image with its image-meta as it is now. Raises as `get` does."""
        try:
            image = client.info(self.name(leaf))
            label, metadata = self._read(client, image)
        except ImageNotFound:
            raise missing(self.kind, self.handle(leaf)) from None
        if label is None:
            raise missing(self.kind, self.handle(leaf))
        return image, label, metadata


@contextmanager
def leaving_incomplete(client: Client, name: str) -> Iterator[None]:
    """Raise no final error in the block: it leaves an incomplete image behind, so the request has to be repeated."""
    try:
        yield
    except (Busy, Unavailable, Timeout):
        raise
    except StorageError as error:
        raise Unavailable(f"{error}; image {client.spec(name)} is incomplete; try again") from error


def name_contended(client: Client, name: str) -> Busy:
    return Busy(f"another process creates and removes image {client.spec(name)} at the same time; try again")


def image_layout(config: Config, parameters: Parameters) -> ImageLayout:
    """Return the layout of a new image. Raises InvalidArgument for what the instance cannot do."""
    refuse_other_cluster(config, parameters)
    features = parameters.features or config.image_features
    if reason := features_problem(features, parameters.mounter or config.mounter):
        raise InvalidArgument(f"'{'imageFeatures' if parameters.features else 'mounter'}': {reason}")
    data_pool = parameters.data_pool or config.data_pool
    return ImageLayout(
        features=features,
        data_pool="" if data_pool == config.pool else data_pool,  # as Ceph reports it
        object_size=parameters.object_size or 0,
        stripe_unit=parameters.stripe_unit or 0,
        stripe_count=parameters.stripe_count or 0,
    )


def layout_of_copy(source: Image, layout: ImageLayout) -> ImageLayout:
    """Return the layout of a copy, as the class of an empty volume would have it.

    `rbd clone` takes from the source what is not given. Its stripe unit, which is the object size of an image without
    stripes, does not fit into smaller objects, and makes an image of larger ones a striped one. Stripes of one whole
    object are none.
    """
    if layout.object_size and not layout.stripe_unit:
        return replace(layout, stripe_unit=layout.object_size, stripe_count=1)
    if layout.stripe_unit and not layout.object_size and source.object_size % layout.stripe_unit:
        return replace(layout, object_size=ceph_rules.OBJECT_SIZE)
    return layout


def refuse_other_cluster(config: Config, parameters: Parameters | SnapshotParameters) -> None:
    """Raise InvalidArgument when a class names another pool or cluster than that of the volume."""
    listed = isinstance(parameters, Parameters) and parameters.topology_constrained_pools  # then `pool` has no effect
    if parameters.pool and parameters.pool != config.pool and not listed:
        raise InvalidArgument(
            f"'pool' {parameters.pool!r} is not the pool of the volume, {config.pool!r}: snapshots and copies stay in "
            "the pool of their source; leave it out"
        )
    for key, cluster in parameters.cluster.items():
        if cluster != config.fsid:
            raise InvalidArgument(
                f"{key!r} {cluster!r} is not the fsid of this instance's cluster, {config.fsid}; leave it out: "
                "'backend' names the instance, and with it the cluster"
            )
