"""Import images that were created by hand or by ceph-csi, and release them again.

An import writes a label on the image and renames it last; a release renames it back first, then removes the label.
ceph-csi finds its images by the names in its journal: an imported one does not exist for it, so it deletes nothing, and
one that is released is its own again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from csi_multi.contract import AlreadyExists, FailedPrecondition, InvalidArgument, Stamp, missing, not_imported

from . import labels
from .client import Client
from .errors import ImageNotFound, NameTaken
from .images import OwnedImages
from .labels import Label
from .watchers import refuse_open

IMAGE = re.compile(r"[^-/@\s][^/@\s]*")
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
PART_OF_CEPH_CSI = re.compile(rf"csi-snap-{_UUID}|csi-vol-{_UUID}-temp")
ENCRYPTED_KEYS = ("rbd.csi.ceph.com/encrypted", ".rbd.csi.ceph.com/encrypted")


class Importer:
    def __init__(self, volumes: OwnedImages, snapshots: OwnedImages) -> None:
        self._volumes = volumes
        self._snapshots = snapshots

    def import_volume(self, client: Client, given: str, stamp: Stamp) -> tuple[str, int, Label]:
        """Label and rename the image, or find an earlier import; return handle, size and label.

        An image whose import was interrupted still has its own name, under which the label does not count: the next
        import starts again. Raises what Import.import_volume says.
        """
        image, leaf = _image(client, given), labels.leaf_for(stamp.name)
        label = Label(image=self._volumes.name(leaf), stamp=stamp, original_name=image)
        if found := self._volumes.find(client, leaf):
            if found.label == label:
                return leaf, found.image.size, label
            raise AlreadyExists(f"image {client.spec(label.image)} already exists; choose another name")
        size = self._refuse_unfit(client, image)
        client.set_metadata(image, labels.KEY, labels.encode(label))
        try:
            client.rename(image, label.image)
        except NameTaken:
            raise AlreadyExists(f"image {client.spec(label.image)} already exists; choose another name") from None
        return leaf, size, label

    def release(self, client: Client, leaf: str) -> str:
        """Give the image its earlier name, then remove the label. Raises what Import.release_volume says."""
        image, label, metadata = self._volumes.get_metadata(client, leaf)
        name = image.name
        if not label.stamp.imported:
            raise not_imported(self._volumes.handle(leaf))
        refuse_open(client, name)
        self._volumes.cache.forget(name)
        try:
            client.rename(name, label.original_name)
        except NameTaken:
            raise AlreadyExists(
                f"image {client.spec(label.original_name)} already exists, and {client.spec(name)} had that name; "
                "rename that other image first"
            ) from None
        for key in (labels.KEY, labels.FORMAT, labels.HOLDER):
            if key in metadata:
                client.remove_metadata(label.original_name, key)
        return f"image {client.spec(label.original_name)}"

    def _refuse_unfit(self, client: Client, image: str) -> int:
        """Return the image's size. Raises NotFound, AlreadyExists, InUse, FailedPrecondition."""
        try:
            found, metadata = client.info(image), client.metadata(image)
        except ImageNotFound:
            raise missing("image", client.spec(image)) from None
        if self._volumes.leaf_of(image) or self._snapshots.leaf_of(image):
            raise AlreadyExists(
                f"image {client.spec(image)} has a name of this driver's form: it is a volume or snapshot already; "
                "name another image"
            )
        _refuse_ceph_csi(client, image, metadata)
        if found.parent:
            raise FailedPrecondition(
                f"image {client.spec(image)} shares data with {found.parent.pool}/{found.parent.image}, which the "
                f"driver does not protect; flatten it first: rbd flatten {client.spec(image)}"
            )
        if found.size < labels.SMALLEST:
            raise FailedPrecondition(
                f"image {client.spec(image)} has {found.size} bytes, and the smallest volume has {labels.SMALLEST}; "
                "resize it"
            )
        refuse_open(client, image)
        return found.size


def _image(client: Client, given: str) -> str:
    """Return the image's name; a pool and namespace before it have to be the instance's. Raises InvalidArgument."""
    image = given.removeprefix(client.spec(""))
    if not IMAGE.fullmatch(image):
        raise InvalidArgument(
            f"{given!r} is not the name of an image in {client.spec('').rstrip('/')}, the pool of this instance; give "
            f"one such as {client.spec('data')}"
        )
    return image


def _refuse_ceph_csi(client: Client, image: str, metadata: Mapping[str, str]) -> None:
    if any(key in metadata for key in ENCRYPTED_KEYS):  # the key of its data may be in its image-meta
        raise FailedPrecondition(
            f"image {client.spec(image)} is encrypted by ceph-csi, and this driver cannot read it; leave it to "
            "ceph-csi, do not remove its image-meta, and copy its files to a new volume instead"
        )
    if PART_OF_CEPH_CSI.fullmatch(image):
        raise FailedPrecondition(
            f"image {client.spec(image)} is a snapshot of ceph-csi, or an image between a volume of it and a clone, "
            "and not a volume; restore the snapshot with ceph-csi, and import the restored volume"
        )
