"""Removal of images: of volumes and snapshots, and of what a killed process left incomplete under their names.

A process that dies while it creates an image leaves an incomplete one: without a label, or smaller than any volume
(labels.empty_image). No request has returned its handle. The next request for that name removes it and starts again; it
is never completed, since its creator may have died before a clone was registered with its parent: the deletion of the
parent would then remove the data. For the same reason it is removed before the snapshot that it was cloned from: see
headers.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from csi_multi.contract import (
    AlreadyExists,
    Busy,
    FailedPrecondition,
    InUse,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    missing,
    not_ours_to_delete,
)

from . import headers, labels
from .client import Client
from .errors import BrokenImage, ImageInUse, ImageNotFound, ParentLost
from .images import FoundImage, ImageExists, OwnedImages
from .resources import Image
from .temporary_snapshots import TemporarySnapshots
from .trash import TrashPurger
from .watchers import refuse_open

log = logging.getLogger(__name__)

USER_SNAPSHOT = "user"  # namespace of snapshots that were created with a name


class ImageRemover:
    """Deletes complete images, and removes incomplete ones."""

    def __init__(self, trash: TrashPurger, kinds: tuple[OwnedImages, ...], background: Client) -> None:
        """`background` runs its commands in the background."""
        self._trash = trash
        trash.remove_snapshots = self._remove_trashed_snapshots
        self._kinds = {images.kind: images for images in kinds}
        self.temporaries = TemporarySnapshots(background, self._settle_copy, immediate=trash.immediate)

    def delete(self, client: Client, images: OwnedImages, leaf: str) -> None:
        """Delete a volume or snapshot, or an incomplete image under its name. Raises NotFound, InUse,
        FailedPrecondition.
        """
        try:
            found = images.find_anew(client, leaf)
        except BrokenImage:  # an earlier deletion was interrupted
            self.remove_broken(client, images.name(leaf))
            return
        except ParentLost:
            self._remove_orphan(client, images, leaf, complete=True)
            return
        if found is None:
            self._trash.sweep(now=True)  # a process that died after it had moved the image to the trash purges nothing
            raise missing(images.kind, images.handle(leaf))
        if found.label is None:
            self.remove_incomplete(client, images, leaf, found)
            return
        if found.label.stamp.imported:
            raise not_ours_to_delete(images.handle(leaf))
        name = found.image.name
        # No node maps the image of a snapshot. One that a person has open only loses its name: `trash rm` refuses it
        # until it is closed, and is repeated. Without a key of the instance's own nothing could repeat it.
        if images.kind == labels.VOLUME or self._trash.immediate:
            refuse_open(client, name)
        if found.image.snapshots:
            self._remove_own_snapshots(client, images, found.image)
        try:
            self._trash.delete(client, found.image)
        except ImageInUse:
            refuse_open(client, name)
            raise
        images.cache.forget(name)

    def purge_again(self) -> None:
        """Purge what is in the trash, also what clones or a group needed a moment ago."""
        self._trash.sweep(now=True, parents=())

    def free_name(self, client: Client, images: OwnedImages, leaf: str, *, again: bool) -> None:
        """Remove the incomplete image that has the name of a new one. `again`: the name was taken before.

        Raises AlreadyExists when the image is complete, Busy, FailedPrecondition.
        """
        try:
            found = images.find(client, leaf)
        except ParentLost:
            self._remove_orphan(client, images, leaf)
            return
        except BrokenImage:
            found = None
        if found is None:
            if again:  # it cannot be found and its name is taken, and no other process has just created or removed it
                self.remove_broken(client, images.name(leaf))
        elif found.label:
            text = f"image {client.spec(found.image.name)} already exists"
            raise ImageExists(text, found.image, found.label)
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
            self.settle(client, images, leaf)
            raise

    def refuse_seen(self, client: Client, images: OwnedImages, leaf: str) -> None:
        """Look for the image of a name that was seen before a new one is begun: the request is most likely repeated.

        Raises as `free_name` does.
        """
        if images.cache.seen(images.name(leaf)):
            self.free_name(client, images, leaf, again=False)

    def settle(self, client: Client, images: OwnedImages, leaf: str) -> None:
        """Remove what is incomplete under a name."""
        with suppress(AlreadyExists):
            self.free_name(client, images, leaf, again=False)

    def _settle_copy(self, client: Client, snapshot: str) -> None:
        kind, leaf = labels.copy_of(snapshot)
        if kind in self._kinds:
            self.settle(client, self._kinds[kind], leaf)

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

    def _remove_orphan(self, client: Client, images: OwnedImages, leaf: str, *, complete: bool = False) -> None:
        """Remove an image that lost its parent, which rbd does not open: an incomplete one, or also a `complete` one.

        Raises AlreadyExists, FailedPrecondition, Busy.
        """
        name = images.name(leaf)
        header = headers.read(client, name)
        label = images.label(client, name, header.metadata, labels.SMALLEST)
        spec = client.spec(name)
        if label and not complete:
            raise AlreadyExists(f"image {spec} already exists")
        if label and label.stamp.imported:
            raise not_ours_to_delete(images.handle(leaf))
        if header.watchers:
            raise Busy(f"image {spec} lost its parent, and {'; '.join(header.watchers)} has it open; try again")
        if not label and header.may_hold_data:
            raise FailedPrecondition(
                f"image {spec} lost its parent, {'has data' if header.has_data else 'may hold data'} and has no "
                f"image-meta {labels.KEY} of its own, so the driver does not remove it; see Recovery in docs/rbd.md"
            )
        log.warning("image %s lost its parent and is removed (id %s)", spec, header.id)
        self._trash.delete(client, Image(name=name, id=header.id, size=0))

    def _remove_own_snapshots(self, client: Client, images: OwnedImages, image: Image) -> None:
        """Remove the driver's own snapshots of an image. Raises InUse when there are others."""
        name = image.name
        only_one = image.snapshots == 1 and images.kind == labels.SNAPSHOT
        if only_one and client.remove_snapshot(name, labels.BASE_SNAPSHOT):
            return  # it was the one that the image had, so there is none of others
        snapshots = [one.name for one in client.snapshots(name) if one.namespace == USER_SNAPSHOT]
        if foreign := [one for one in snapshots if not labels.is_own_snapshot(one)]:
            raise InUse(
                f"image {client.spec(name)} has snapshots that this driver did not create: {', '.join(foreign)}; "
                "remove them with 'rbd snap rm' if they are not needed"
            )
        for one in snapshots:
            self.temporaries.remove(client, name, one)

    def _remove_trashed_snapshots(self, client: Client, id: str) -> bool:
        """Remove the driver's own snapshots of an image in the trash, and before each what is incomplete of its copy.

        Return whether there were any. No copy can be begun any more: that needs the image's name. Raises Busy while
        another process is creating one.
        """
        found = [one.name for one in client.trashed_snapshots(id) if one.namespace == USER_SNAPSHOT]
        own = [one for one in found if labels.is_own_snapshot(one)]
        for one in own:
            if labels.is_temporary(one):
                self._settle_copy(client, one)
            client.remove_trashed_snapshot(id, one)
        return bool(own)
