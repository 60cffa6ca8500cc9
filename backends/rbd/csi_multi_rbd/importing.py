"""Take over images that were made by hand: they get a label, and last a name of ours; released, their own again."""

from __future__ import annotations

import re
from collections.abc import Mapping

from csi_multi.contract import AlreadyExists, FailedPrecondition, InUse, InvalidArgument, Stamp, missing, not_imported

from . import export, names, stamps
from .rbd import Rbd
from .shelf import Shelf
from .stamps import Label
from .statuses import Exists, Missing

IMAGE = re.compile(r"[^-/@\s][^/@\s]*")
CEPH_CSI = re.compile(r"csi-(vol|snap)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CEPH_CSI_KEYS = ("csi.storage.k8s.io/", "csi.ceph.com/")


class Importer:
    def __init__(self, volumes: Shelf, snapshots: Shelf) -> None:
        self._volumes = volumes
        self._snapshots = snapshots

    def take(self, rbd: Rbd, given: str, stamp: Stamp) -> tuple[str, int, Label]:
        """Label and rename the image, or find it done; return handle, size and label.

        Killed in between it still has its own name, and a label that is not believed there: it is begun anew.
        Raises what Import.import_volume says.
        """
        image, leaf = _image(rbd, given), names.leaf_for(stamp.name)
        label = Label(image=self._volumes.name(leaf), stamp=stamp, was=image)
        if found := self._volumes.look(rbd, leaf):
            if found.label == label:
                return leaf, found.image.size, label
            raise AlreadyExists(f"image {rbd.spec(label.image)} is there already; choose another name")
        size = self._refuse_unfit(rbd, image)
        rbd.note(image, stamps.KEY, stamps.text(label))
        try:
            rbd.rename(image, label.image)
        except Exists:
            raise AlreadyExists(f"image {rbd.spec(label.image)} is there already; choose another name") from None
        return leaf, size, label

    def release(self, rbd: Rbd, leaf: str) -> str:
        """Give the image the name it had, and then take the label off. Raises what Import.release_volume says."""
        found, label = self._volumes.get(rbd, leaf)
        name = found.image.name
        if not label.stamp.imported:
            raise not_imported(leaf)
        _refuse_open(rbd, name)
        try:
            rbd.rename(name, label.was)
        except Exists:
            raise AlreadyExists(
                f"there is another image {rbd.spec(label.was)} now, which is the name that {rbd.spec(name)} had; "
                "rename that away"
            ) from None
        for key in (stamps.KEY, stamps.FORMAT):
            if key in found.metadata:
                rbd.unnote(label.was, key)
        return f"image {rbd.spec(label.was)}"

    def _refuse_unfit(self, rbd: Rbd, image: str) -> int:
        """Return the image's size. Raises NotFound, AlreadyExists, InUse, FailedPrecondition."""
        try:
            found, metadata = rbd.info(image), rbd.metadata(image)
        except Missing:
            raise missing("image", rbd.spec(image)) from None
        if self._volumes.leaf_of(image) or self._snapshots.leaf_of(image):
            raise AlreadyExists(
                f"image {rbd.spec(image)} has a name of this driver's own: it is its volume or snapshot"
            )
        _refuse_ceph_csi(rbd, image, metadata)
        if found.parent:
            raise FailedPrecondition(
                f"image {rbd.spec(image)} shares data with {found.parent.pool}/{found.parent.image}, which nobody "
                f"keeps for it; make it whole with rbd flatten {rbd.spec(image)}"
            )
        if found.size < export.LIMIT:
            raise FailedPrecondition(
                f"image {rbd.spec(image)} has {found.size} bytes; a volume has {export.LIMIT} or more"
            )
        _refuse_open(rbd, image)
        return found.size


def _image(rbd: Rbd, given: str) -> str:
    """Return the image's name; pool and namespace before it have to be the instance's."""
    image = given.removeprefix(rbd.spec(""))
    if not IMAGE.fullmatch(image):
        raise InvalidArgument(f"{given!r} is not the name of an image in {rbd.spec('').rstrip('/')}")
    return image


def _refuse_ceph_csi(rbd: Rbd, image: str, metadata: Mapping[str, str]) -> None:
    if CEPH_CSI.fullmatch(image) or any(key.startswith(CEPH_CSI_KEYS) for key in metadata):
        raise FailedPrecondition(
            f"image {rbd.spec(image)} belongs to ceph-csi, which would lose it under another name; set its "
            "PersistentVolume to Retain and delete that, then rename the image and remove its image-meta of ceph-csi"
        )


def _refuse_open(rbd: Rbd, image: str) -> None:
    if watchers := rbd.watchers(image):
        raise InUse(f"image {rbd.spec(image)} is open: watched by {', '.join(watchers)}; unmap it there first")
