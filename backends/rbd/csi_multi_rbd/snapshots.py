"""Snapshots, and copies of images: a snapshot is an image of its own, a clone of the volume, and outlives it.

To copy an image, a Ceph snapshot of it is created, cloned under the new name, and removed: Ceph keeps it in its trash
namespace while the clone needs it (clone v2). The label is written last, so an image with a label is complete. A
process that dies before leaves a clone without a label of its own, which the next request removes.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from csi_multi.contract import (
    Busy,
    FailedPrecondition,
    ResourceExhausted,
    SnapshotRequest,
    StorageError,
    Strings,
    Timeout,
    Unavailable,
    missing,
)

from . import labels
from .client import Client
from .config import Config, SnapshotParameters
from .errors import ImageNotFound, NameTaken
from .flatten import Flattener
from .images import (
    ATTEMPTS,
    FoundImage,
    ImageSpec,
    OwnedImages,
    leaving_incomplete,
    name_contended,
    refuse_other_cluster,
)
from .labels import Label
from .removal import ImageRemover
from .resources import ImageLayout, ListedSnapshot

log = logging.getLogger(__name__)

RETRIED = (Busy, Unavailable, Timeout, ResourceExhausted)
# Of snapshots, which no node maps.
SNAPSHOT_FEATURES = ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")
ANNOTATION_LENGTH = 256  # characters
ANNOTATIONS = 8


class ImageCopier:
    """Copies images, for snapshots, restores and clones."""

    def __init__(self, config: Config, remover: ImageRemover, flattener: Flattener) -> None:
        self._config = config
        self._remover = remover
        self._flattener = flattener

    def source(self, client: Client, images: OwnedImages, leaf: str) -> FoundImage:
        """Return the image to copy. Raises NotFound, FailedPrecondition, Busy, ResourceExhausted."""
        found, _ = images.get(client, leaf)
        spec = client.spec(found.image.name)
        if "layering" not in found.image.features:
            raise FailedPrecondition(
                f"image {spec} lacks the feature 'layering', without which it cannot be cloned; copy it with 'rbd cp'"
            )
        if found.ancestors >= self._config.max_depth:
            self._flattener.schedule(found.image.name)
            raise Busy(
                f"the clone chain of image {spec} is {found.ancestors} deep, and `max_depth` is "
                f"{self._config.max_depth}; the image is being flattened; try again"
            )
        if found.image.snapshots >= self._config.flatten_snapshots:
            self._flattener.flatten_children(client, found.image.name)
        if found.image.snapshots >= self._config.max_snapshots:
            raise ResourceExhausted(
                f"image {spec} has {found.image.snapshots} snapshots, and `max_snapshots` is "
                f"{self._config.max_snapshots}, since kernels map images with up to 510; delete some of its snapshots, "
                "or wait until its clones are flattened"
            )
        return found

    def copy(
        self, client: Client, images: OwnedImages, leaf: str, source: FoundImage, spec: ImageSpec, *, base: str = ""
    ) -> float:
        """Clone an image from a snapshot of it: a temporary one, or the lasting one `base`. Return when it was created.

        Raises AlreadyExists when a complete image has the name, NotFound for the source, Busy.
        """
        origin, snapshot = source.image.name, base or labels.temporary_snapshot(images.kind, leaf)
        at = time.time()
        remove = not base
        if not (base and source.image.snapshots):
            remove = self._create_snapshot(client, origin, snapshot, lasting=bool(base)) or remove
        try:
            self._clone(client, images, leaf, origin, spec, snapshot)
        except StorageError as error:
            if remove:
                self._remove_snapshot(client, images, leaf, origin, snapshot, error)
            raise
        if not base:
            with leaving_incomplete(client, spec.name):
                client.remove_snapshot(origin, snapshot)
        return at

    def complete(self, client: Client, label: Label) -> None:
        """Write the label, which makes a copy a volume or snapshot."""
        with leaving_incomplete(client, label.image):
            client.set_metadata(label.image, labels.KEY, labels.encode(label))
        if label.depth >= self._config.flatten_depth:
            self._flattener.schedule(label.image)

    def _create_snapshot(self, client: Client, source: str, snapshot: str, *, lasting: bool) -> bool:
        """Return whether the snapshot is new. A temporary one that exists is from an earlier attempt, so it is old."""
        try:
            try:
                client.create_snapshot(source, snapshot)
            except NameTaken:
                if lasting:
                    return False
                self._remover.remove_temporary(client, source, snapshot)
                client.create_snapshot(source, snapshot)
        except ImageNotFound:
            raise missing("source", source) from None
        return True

    def _clone(
        self, client: Client, images: OwnedImages, leaf: str, source: str, spec: ImageSpec, snapshot: str
    ) -> None:
        for attempt in range(ATTEMPTS):
            try:
                client.clone(source, snapshot, spec.name, spec.layout)
                return
            except NameTaken:
                self._remover.free_name(client, images, leaf, again=attempt > 0)
            except ImageNotFound:
                if snapshot != labels.BASE_SNAPSHOT:
                    raise
                # the snapshots that the image has are not the driver's
                self._create_snapshot(client, source, snapshot, lasting=True)
        raise name_contended(client, spec.name)

    def _remove_snapshot(
        self, client: Client, images: OwnedImages, leaf: str, source: str, snapshot: str, reason: StorageError
    ) -> None:
        """Remove a new snapshot after a failure, and before it what is incomplete of the clone, which was perhaps
        killed. While the snapshot exists, no error is final.
        """
        try:
            self._remover.settle(client, images, leaf)
            client.remove_snapshot(source, snapshot)
        except StorageError as error:
            raise Unavailable(
                f"{reason}; the snapshot {client.spec(source, snapshot)} cannot be removed either: {error}; try again"
            ) from reason


class SnapshotManager:
    """Every method acts through the client it is given, which may be a request's own user."""

    def __init__(
        self,
        config: Config,
        volumes: OwnedImages,
        snapshots: OwnedImages,
        remover: ImageRemover,
        copier: ImageCopier,
    ) -> None:
        self._config = config
        self._volumes = volumes
        self._snapshots = snapshots
        self._remover = remover
        self._copier = copier
        self._leftovers: list[ListedSnapshot] = []  # what could not be removed yet

    def create(self, client: Client, leaf: str, request: SnapshotRequest) -> tuple[int, Label]:
        """Create a snapshot; return its size and label. Raises AlreadyExists, NotFound, ResourceExhausted."""
        refuse_other_cluster(self._config, request.parameters or SnapshotParameters())
        with self._remover.removing_incomplete(client, self._snapshots, leaf):
            volume = self._copier.source(client, self._volumes, self._volumes.leaf(request.source))
            spec = ImageSpec(
                name=self._snapshots.name(leaf),
                size=volume.image.size,
                layout=ImageLayout(features=SNAPSHOT_FEATURES, data_pool=volume.image.data_pool),
            )
            created = self._copier.copy(client, self._snapshots, leaf, volume, spec)
        label = Label(
            image=spec.name,
            stamp=request.stamp,
            source=request.source,
            source_id=volume.image.id,
            created=created,
            depth=volume.ancestors + 1,
            annotations=label_annotations(request.metadata),
        )
        self._copier.complete(client, label)
        return spec.size, label

    def get(self, client: Client, leaf: str) -> tuple[int, Label]:
        """Raises NotFound."""
        found, label = self._snapshots.get(client, leaf)
        return found.image.size, label

    def delete(self, client: Client, leaf: str) -> None:
        """Raises NotFound, InUse, FailedPrecondition."""
        self._remover.delete(client, self._snapshots, leaf)

    def remove_leftovers(self, client: Client) -> None:
        """Remove temporary snapshots of copies that an earlier process began: no request may ever repeat them."""
        found = client.all_snapshots()
        self._leftovers = [one for one in found if labels.is_temporary(one.name) and self._volumes.leaf_of(one.image)]
        self.retry_leftovers(client)

    def retry_leftovers(self, client: Client) -> None:
        """Remove what `remove_leftovers` found and could not remove: the watch of a killed command ends after 30 s."""
        kept = []
        for one in self._leftovers:
            try:
                self._remove_leftover(client, one)
            except StorageError as error:
                spec = client.spec(one.image, one.name)
                log.warning("the temporary snapshot %s of an earlier process is not removed: %s", spec, error)
                if isinstance(error, RETRIED):
                    kept.append(one)
        self._leftovers = kept

    def _remove_leftover(self, client: Client, snapshot: ListedSnapshot) -> None:
        """Remove it, unless a request has removed it since, and perhaps created another one of that name."""
        with suppress(ImageNotFound):
            if any(one.id == snapshot.id and one.name == snapshot.name for one in client.snapshots(snapshot.image)):
                self._remover.remove_temporary(client, snapshot.image, snapshot.name)


def label_annotations(metadata: Strings) -> dict[str, str]:
    """Return the metadata of a request that its label holds for people, shortened."""
    return {key: text[:ANNOTATION_LENGTH] for key, text in sorted(metadata.items())[:ANNOTATIONS]}
