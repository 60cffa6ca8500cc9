"""Snapshots, and copies of images: a snapshot is an image of its own, a clone of the volume, and outlives it.

To copy an image, a Ceph snapshot of it is created and cloned under the new name. The label is written last, so an image
with a label is complete. A process that dies before leaves a clone without a label of its own, which the next request
removes. After the answer the Ceph snapshot is removed (temporary_snapshots.py): Ceph keeps it in its trash namespace
while the clone needs it (clone v2).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from csi_multi.contract import (
    Busy,
    FailedPrecondition,
    ResourceExhausted,
    SnapshotRequest,
    StorageError,
    Strings,
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
from .temporary_snapshots import RETRIED

log = logging.getLogger(__name__)

# Of snapshots, which no node maps.
SNAPSHOT_FEATURES = ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")
ANNOTATION_LENGTH = 256  # characters
ANNOTATIONS = 8


class ImageCopier:
    """Copies images, for snapshots, restores and clones."""

    def __init__(self, config: Config, remover: ImageRemover, flattener: Flattener) -> None:
        self._config = config
        self._remover = remover
        self._temporaries = remover.temporaries
        self._flattener = flattener

    def source(self, client: Client, images: OwnedImages, leaf: str, *, seen: bool) -> FoundImage:
        """Return the image to copy. `seen`: the core has just read its stamp (backend.source_stamp).

        Raises NotFound, FailedPrecondition, Busy, ResourceExhausted.
        """
        found = images.get_source(client, leaf) if seen else images.get(client, leaf)[0]
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
        self,
        client: Client,
        images: OwnedImages,
        leaf: str,
        source: FoundImage,
        spec: ImageSpec,
        label_of: Callable[[float], Label],
        *,
        base: str = "",
    ) -> Label:
        """Create an image with the data of another, from a temporary snapshot of that or the lasting one `base`.

        `label_of` makes its label from the time of the snapshot. Raises AlreadyExists when a complete image has the
        name, NotFound for the source, Busy.
        """
        origin = source.image.name
        if base:
            at = self._clone_from(client, images, leaf, source, spec, base, lasting=True)
            return self.complete(client, source, spec, label_of(at))
        snapshot = labels.temporary_snapshot(images.kind, leaf)
        with self._temporaries.claimed(origin, snapshot):
            at = self._clone_from(client, images, leaf, source, spec, snapshot, lasting=False)
            try:
                if self._temporaries.immediate:
                    with leaving_incomplete(client, spec.name):
                        client.remove_snapshot(origin, snapshot)
                label = self.complete(client, source, spec, label_of(at))
            except StorageError:
                self._temporaries.remove_later(origin, snapshot, copied=False)
                raise
            self._temporaries.remove_later(origin, snapshot, copied=True)
        return label

    def _clone_from(
        self,
        client: Client,
        images: OwnedImages,
        leaf: str,
        source: FoundImage,
        spec: ImageSpec,
        snapshot: str,
        *,
        lasting: bool,
    ) -> float:
        """Clone an image from a snapshot of it; return when the snapshot was created."""
        origin, at = source.image.name, time.time()
        remove = not lasting
        if not (lasting and source.image.snapshots):
            remove = self.create_snapshot(client, origin, snapshot, lasting=lasting) or remove
        try:
            self._clone(client, images, leaf, origin, spec, snapshot)
        except StorageError as error:
            if remove:
                self._remove_snapshot(client, images, leaf, origin, snapshot, error)
            raise
        return at

    def complete(self, client: Client, source: FoundImage, spec: ImageSpec, label: Label) -> Label:
        """Enlarge the copy, then write the label, which makes it a volume or snapshot."""
        with leaving_incomplete(client, label.image):
            if source.image.size < spec.size:
                client.resize(spec.name, spec.size)
            client.set_metadata(label.image, labels.KEY, labels.encode(label))
        if label.depth >= self._config.flatten_depth:
            self._flattener.schedule(label.image)
        return label

    def create_snapshot(self, client: Client, source: str, snapshot: str, *, lasting: bool) -> bool:
        """Return whether the snapshot is new. A temporary one that exists is from an earlier attempt, so it is old."""
        try:
            try:
                client.create_snapshot(source, snapshot)
            except NameTaken:
                if lasting:
                    return False
                self._temporaries.remove_claimed(client, source, snapshot)
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
                self.create_snapshot(client, source, snapshot, lasting=True)
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
            self._temporaries.remove_later(source, snapshot, copied=False)
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
        self._temporaries = remover.temporaries
        self._copier = copier
        self._leftovers: list[ListedSnapshot] = []  # what could not be removed yet

    def create(self, client: Client, leaf: str, request: SnapshotRequest) -> tuple[int, Label]:
        """Create a snapshot; return its size and label. Raises AlreadyExists, NotFound, ResourceExhausted."""
        refuse_other_cluster(self._config, request.parameters or SnapshotParameters())
        with self._remover.removing_incomplete(client, self._snapshots, leaf):
            self._remover.refuse_seen(client, self._snapshots, leaf)
            volume = self._copier.source(client, self._volumes, self._volumes.leaf(request.source), seen=True)
            spec = ImageSpec(
                name=self._snapshots.name(leaf),
                size=volume.image.size,
                layout=ImageLayout(features=SNAPSHOT_FEATURES, data_pool=volume.image.data_pool),
            )

            def label_of(created: float) -> Label:
                return Label(
                    image=spec.name,
                    stamp=request.stamp,
                    source=request.source,
                    source_id=volume.image.id,
                    created=created,
                    depth=volume.ancestors + 1,
                    annotations=label_annotations(request.metadata),
                )

            label = self._copier.copy(client, self._snapshots, leaf, volume, spec, label_of)
        self._snapshots.cache.note_created(spec.name)
        return spec.size, label

    def get(self, client: Client, leaf: str) -> tuple[int, Label]:
        """Raises NotFound."""
        found, label = self._snapshots.get(client, leaf)
        return found.image.size, label

    def delete(self, client: Client, leaf: str) -> None:
        """Raises NotFound, InUse, FailedPrecondition."""
        self._remover.delete(client, self._snapshots, leaf)

    def remove_leftovers(self, client: Client, found: Iterable[ListedSnapshot]) -> None:
        """Remove temporary snapshots of copies that an earlier process began: no request may ever repeat them."""
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
        with suppress(ImageNotFound), self._temporaries.claimed(snapshot.image, snapshot.name):
            if any(one.id == snapshot.id and one.name == snapshot.name for one in client.snapshots(snapshot.image)):
                self._temporaries.remove_claimed(client, snapshot.image, snapshot.name)


def label_annotations(metadata: Strings) -> dict[str, str]:
    """Return the metadata of a request that its label holds for people, shortened."""
    return {key: text[:ANNOTATION_LENGTH] for key, text in sorted(metadata.items())[:ANNOTATIONS]}
