"""What is under a name in the pool: nothing, something half-made, something of ours, or somebody else's."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import FailedPrecondition, Setting, ids, missing

from . import names, stamps
from .rbd import Rbd
from .rows import Image
from .stamps import Label
from .statuses import Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An image under one of our names. Without a label it is half-made: nobody was ever told of it."""

    image: Image
    label: Label | None
    metadata: dict[str, str]

    @property
    def parents(self) -> int:
        """How many parents are above it, at most: one that was flattened since has none."""
        return self.label.depth if self.label and self.image.parent else 0


class Shelf:
    """The images of one kind."""

    def __init__(self, kind: str, setting: Setting) -> None:
        self.kind = kind
        self.prefix = names.prefix(kind, setting.driver, setting.cluster)
        self._setting = setting

    def name(self, leaf: str) -> str:
        """Return the name of the image."""
        return self.prefix + leaf

    def leaf_of(self, image: str) -> str:
        """Return the leaf of an image's name, "" when it is none of ours."""
        leaf = image.removeprefix(self.prefix)
        return leaf if leaf != image and ids.LEAF_SHAPE.fullmatch(leaf) else ""

    def leaf(self, handle: str) -> str:
        """Raises NotFound."""
        return names.leaf(self.kind, handle)

    def look(self, rbd: Rbd, leaf: str) -> Found | None:
        """Return what has the name. Raises FailedPrecondition for another's."""
        name = self.name(leaf)
        try:
            image = rbd.info(name)
            metadata = rbd.metadata(name)
        except Missing:
            return None
        label = stamps.read(name, metadata, image.size)
        if label and not self.owns(label):
            raise FailedPrecondition(
                f"image {rbd.spec(name)} belongs to driver {label.stamp.driver!r} in cluster "
                f"{label.stamp.cluster!r}, so it is not touched"
            )
        return Found(image=image, label=label, metadata=metadata)

    def owns(self, label: Label) -> bool:
        return (label.stamp.driver, label.stamp.cluster) == (self._setting.driver, self._setting.cluster)

    def get(self, rbd: Rbd, leaf: str) -> tuple[Found, Label]:
        """Return a finished one of ours. Raises NotFound, FailedPrecondition for another's."""
        found = self.look(rbd, leaf)
        if found is None or found.label is None:
            raise missing(self.kind, leaf)
        return found, found.label
