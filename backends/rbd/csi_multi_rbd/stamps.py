"""What is written on an image, as image-meta: one JSON text that says what the image is, and how far mkfs has come.

A clone inherits all image-meta of its parent. So the text names the image it was written for: on another image
it says only that the copy was not finished.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from csi_multi.contract import Blank, FailedPrecondition, Stamp

from . import export

KEY = "csi-multi"
FORMAT = "csi-multi-format"
FORMATTING = "began"
FORMATTED = "done"
VERSION = 1


class Label(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON text.

    `depth` counts the parents above an image when it was made; `source` and `cut` (seconds since 1970) are a
    snapshot's; `was` is the name that an imported image had; `mounter` and the options are how nodes map a volume,
    where its StorageClass says so.
    """

    image: str
    stamp: Stamp
    source: str = ""
    cut: float = 0.0
    depth: int = 0
    mounter: str = ""
    map_options: str = ""
    unmap_options: str = ""
    was: str = ""
    people: dict[str, str] = msgspec.field(default_factory=dict)
    version: int = VERSION


def text(label: Label) -> str:
    return msgspec.json.encode(label).decode()


def read(image: str, metadata: Mapping[str, str], size: int) -> Label | None:
    """Return what an image of that size is; None while it is not finished. Raises FailedPrecondition when the label
    is damaged.
    """
    if KEY not in metadata or size < export.LIMIT:
        return None
    try:
        label = msgspec.json.decode(metadata[KEY], type=Label)
    except msgspec.DecodeError as error:
        raise FailedPrecondition(
            f"image-meta {KEY} of image {image} is damaged: {error}; write it anew with 'rbd image-meta set', see the "
            "recovery recipes, or rename the image away"
        ) from None
    if label.version > VERSION:
        raise FailedPrecondition(
            f"image-meta {KEY} of image {image} has version {label.version}, this driver knows up to {VERSION}; "
            "upgrade the driver"
        )
    return label if label.image == image else None


def blank(label: Label, metadata: Mapping[str, str]) -> Blank:
    """Return how a volume's device may be proven to hold no data: what was never written reads as zeros."""
    how_far = metadata.get(FORMAT, "")
    if label.stamp.source or label.stamp.imported or how_far == FORMATTED:
        return Blank.NEVER
    return Blank.INTERRUPTED if how_far == FORMATTING else Blank.ZEROED
