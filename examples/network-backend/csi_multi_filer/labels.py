"""Labels: the stamp and the format state of a volume, stored beside its data; and how handles are formed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from csi_multi.contract import LEAF_SHAPE, Blank, FailedPrecondition, Stamp, missing

from .client import Client


class Label(msgspec.Struct, frozen=True, kw_only=True):
    stamp: Stamp
    blank: Blank


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of one driver in one cluster."""

    client: Client
    driver: str
    cluster: str

    def find(self, leaf: str) -> Label | None:
        """Return a label, also a foreign one; None if there is none. Raises FailedPrecondition when it is damaged."""
        data = self.client.read_label(leaf)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Label)
        except msgspec.DecodeError as error:
            file = self.client.label_file(leaf)
            raise FailedPrecondition(
                f"label {file} is damaged: {error}; restore it, or move it away together with its image"
            ) from None

    def read(self, leaf: str) -> Label:
        """Return the label of an own volume. Raises NotFound; FailedPrecondition when the volume is foreign."""
        label = self.find(leaf)
        if label is None:
            raise missing("volume", leaf)
        if not self._own(label):
            owner = f"driver {label.stamp.driver!r} in cluster {label.stamp.cluster!r}"
            raise FailedPrecondition(f"volume {leaf!r} belongs to {owner}; give each driver its own directory")
        return label

    def draft(self, leaf: str, label: Label) -> None:
        self.client.write_draft(leaf, msgspec.json.encode(label))

    def write(self, leaf: str, label: Label) -> None:
        self.draft(leaf, label)
        self.client.commit(leaf)

    def refuse_unknown(self, leaf: str, image: int) -> None:
        """Raise FailedPrecondition unless an image without a label is what an own interrupted operation left."""
        if not os.fstat(image).st_size:
            return
        with suppress(msgspec.DecodeError):
            data = self.client.read_draft(leaf)
            if data is not None and self._own(msgspec.json.decode(data, type=Label)):
                return
        raise FailedPrecondition(
            f"image {self.client.image(leaf)} has no label, and nothing shows that this driver made it; restore its "
            "label, or move it away"
        )

    def _own(self, label: Label) -> bool:
        return (label.stamp.driver, label.stamp.cluster) == (self.driver, self.cluster)


def leaf_of(handle: str) -> str:
    """Return the leaf of a handle, which is the handle. Raises NotFound for one of another form: no path is built."""
    if not LEAF_SHAPE.fullmatch(handle):
        raise missing("volume", handle)
    return handle
