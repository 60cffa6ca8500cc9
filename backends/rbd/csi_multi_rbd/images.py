"""The images under the driver's names: complete ones are volumes and snapshots, incomplete ones are removed.

A process that dies while it creates an image leaves an incomplete one: without a label, or smaller than any volume
(labels.empty_image). No request has returned its handle. The next request for that name removes it and starts again; it
is never completed, since its creator may have died before a clone was registered with its parent: the deletion of the
parent would then remove the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InUse,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Setting,
    StorageError,
    Timeout,
    Unavailable,
    ids,
    missing,
    not_ours_to_delete,
)

from . import labels
from .ceph_rules import features_problem
from .client import Client
from .config import Config, Parameters, SnapshotParameters
from .errors import BrokenImage, ImageInUse, ImageNotFound
from .labels import Label
from .resources import Image, ImageLayout
from .trash import TrashPurger

ATTEMPTS = 3  # to create an image whose name was taken
USER_SNAPSHOT = "user"  # namespace of snapshots that were created with a name


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
    metadata: dict[str, str]

    @property
    def ancestors(self) -> int:
        """The number of its ancestors, at most: one that was flattened since has none."""
        return self.label.depth if self.label and self.image.parent else 0


class OwnedImages:
    """The images of one kind, volumes or snapshots, that belong to this driver."""

    def __init__(self, kind: str, setting: Setting) -> None:
        self.kind = kind
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
        """Raises NotFound."""
        return labels.checked_leaf(self.kind, handle)

    def find(self, client: Client, leaf: str) -> FoundImage | None:
        """Return the image with this name, complete or not. Raises FailedPrecondition for another driver's."""
        name = self.name(leaf)
        try:
            image = client.info(name)
            metadata = client.metadata(name)
        except ImageNotFound:
            return None
        label = labels.decode(name, metadata, image.size)
        if label and not self.owns(label):
            raise FailedPrecondition(
                f"image {client.spec(name)} belongs to driver {label.stamp.driver!r} in cluster "
                f"{label.stamp.cluster!r}, and this driver does not change it; give each driver on a "
                "pool its own driver.name or driver.cluster"
            )
        return FoundImage(image=image, label=label, metadata=metadata)

    def owns(self, label: Label) -> bool:
        return (label.stamp.driver, label.stamp.cluster) == (self._setting.driver, self._setting.cluster)

    def get(self, client: Client, leaf: str) -> tuple[FoundImage, Label]:
        """Return a complete image. Raises NotFound, FailedPrecondition for another driver's."""
        found = self.find(client, leaf)
        if found is None or found.label is None:
            raise missing(self.kind, leaf)
        return found, found.label


class ImageRemover:
    """Deletes complete images, and removes incomplete ones."""

    def __init__(self, trash: TrashPurger) -> None:
        self._trash = trash

    def delete(self, client: Client, images: OwnedImages, leaf: str) -> None:
        """Delete a volume or snapshot, or an incomplete image under its name. Raises NotFound, InUse,
        FailedPrecondition.
        """
        try:
            found = images.find(client, leaf)
        except BrokenImage:  # an earlier deletion was interrupted
            self.remove_broken(client, images.name(leaf))
            return
        if found is None:
            self._trash.sweep(now=True)  # a process that died after it had moved the image to the trash purges nothing
            raise missing(images.kind, leaf)
        if found.label is None:
            self.remove_incomplete(client, images, leaf, found)
            return
        if found.label.stamp.imported:
            raise not_ours_to_delete(leaf)
        name = found.image.name
        _refuse_open(client, name)
        if found.image.snapshots:
            _remove_own_snapshots(client, name)
        try:
            self._trash.delete(client, found.image)
        except ImageInUse:
            _refuse_open(client, name)
            raise

    def free_name(self, client: Client, images: OwnedImages, leaf: str, *, again: bool) -> None:
        """Remove the incomplete image that has the name of a new one. `again`: the name was taken before.

        Raises AlreadyExists when the image is complete, Busy, FailedPrecondition.
        """
        try:
            found = images.find(client, leaf)
        except BrokenImage:
            found = None
        if found is None:
            if again:  # it cannot be found and its name is taken, and no other process has just created or removed it
                self.remove_broken(client, images.name(leaf))
        elif found.label:
            raise AlreadyExists(f"image {client.spec(found.image.name)} already exists")
        else:
            self.remove_incomplete(client, images, leaf, found)

    def remove_broken(self, client: Client, name: str) -> None:
        """Remove a listed image without a header: the command that created or trashed it was killed.

        Raises ImageInUse.
        """
        try:
            client.move_to_trash(name)
            self._trash.sweep(now=True)
        except ImageNotFound:  # it is not even listed
            with suppress(ImageNotFound):  # rbd reports this, and has removed the rest
                client.remove(name)

    @contextmanager
    def removing_incomplete(self, client: Client, images: OwnedImages, leaf: str) -> Iterator[None]:
        """Remove an incomplete image under the name when the block fails with an error that is final: the source does
        not exist, no space, or no rights.
        """
        try:
            yield
        except (NotFound, ResourceExhausted, PermissionDenied):
            found = images.find(client, leaf)
            if found and not found.label:
                self.remove_incomplete(client, images, leaf, found)
            raise

    def remove_incomplete(self, client: Client, images: OwnedImages, leaf: str, found: FoundImage) -> None:
        """Raises FailedPrecondition when the image holds data, Busy while another process is creating it."""
        name = found.image.name
        if watchers := client.watchers(name):
            raise Busy(f"image {client.spec(name)} is incomplete, and {', '.join(watchers)} has it open; try again")
        if client.used_bytes(name):
            raise FailedPrecondition(
                f"image {client.spec(name)} has data and no image-meta {labels.KEY}, so the driver does not remove it; "
                "rename it, or write its label again, see Recovery in docs/rbd.md"
            )
        current = images.find(client, leaf)
        if current is None:
            return
        if current.label or current.image.id != found.image.id:
            raise Busy(f"another process has just created image {client.spec(name)}; try again")
        self._trash.delete(client, current.image)


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


def refuse_other_cluster(config: Config, parameters: Parameters | SnapshotParameters) -> None:
    """Raise InvalidArgument when a class names another pool or cluster than the instance's."""
    if parameters.pool and parameters.pool != config.pool:
        raise InvalidArgument(
            f"'pool' {parameters.pool!r} is not the pool of this instance, {config.pool!r}: an instance is one pool; "
            "leave it out, or configure another instance and name that one as 'backend'"
        )
    for key, cluster in parameters.cluster.items():
        if cluster != config.fsid:
            raise InvalidArgument(
                f"{key!r} {cluster!r} is not the fsid of this instance's cluster, {config.fsid}; leave it out: "
                "'backend' names the instance, and with it the cluster"
            )


def _refuse_open(client: Client, name: str) -> None:
    if watchers := client.watchers(name):
        raise InUse(
            f"image {client.spec(name)} is open: watched by {', '.join(watchers)}; unpublish and unstage the volume "
            "there first; the watch of a dead client ends after about 30 s"
        )


def _remove_own_snapshots(client: Client, name: str) -> None:
    """Remove the driver's own snapshots of an image. Raises InUse when there are others."""
    snapshots = [one.name for one in client.snapshots(name) if one.namespace == USER_SNAPSHOT]
    if foreign := [one for one in snapshots if one != labels.BASE_SNAPSHOT and not labels.is_temporary(one)]:
        raise InUse(
            f"image {client.spec(name)} has snapshots that this driver did not create: {', '.join(foreign)}; remove "
            "them with 'rbd snap rm' if they are not needed"
        )
    for one in snapshots:
        client.remove_snapshot(name, one)
