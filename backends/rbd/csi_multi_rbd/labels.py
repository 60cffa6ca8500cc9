"""Labels: the names of the driver's images, and the image-meta on them.

csi-vol-<owner>-<leaf>    a volume           csi-tmp-<leaf>   snapshot of a volume while a copy of it is created
csi-snap-<owner>-<leaf>   a snapshot         csi-base         snapshot of a snapshot's image, to restore volumes from
csi-group-<owner>-<leaf>  a group snapshot: an empty image with the group's label; while it is made, also a group of rbd

<owner> is a hash of driver and cluster, so that two drivers that share a pool never use the same name. A handle is the
leaf: pool, namespace and cluster are the instance's. In another of its `pools` it is <pool>/<leaf>.

The label is a JSON text in the image-meta. A clone inherits all image-meta of its parent, so a label names its image:
on another image it means that the copy was not finished.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Annotated

import msgspec

from csi_multi.contract import Blank, FailedPrecondition, Stamp, VolumeRequest, ids, missing

from .config import MIB

VOLUME = "volume"
SNAPSHOT = "snapshot"
GROUP = "group snapshot"
BASE_SNAPSHOT = "csi-base"
_WORDS = {VOLUME: "vol", SNAPSHOT: "snap", GROUP: "group"}
_TEMPORARY = "csi-tmp-"

KEY = "csi-multi"  # of the image-meta
FORMAT = "csi-multi-format"  # the key that records how far mkfs has come
HOLDER = "csi-multi-node"  # the key that records which node has the image mapped (fencing.py)
FORMATTING = "began"
FORMATTED = "done"
VERSION = 1
LAST_SECOND = 253_402_300_799  # of the year 9999, since 1970
SMALLEST = MIB  # bytes of the smallest volume; the file of empty_image is smaller


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a group's label holds of one member: with the group's own fields, all that is shown of it."""

    source: str
    source_id: str
    size: int


class Label(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON text. Some fields have shorter names there.

    `depth` counts the ancestors of an image when it was created. `source`, `source_id` (the id of the
    source's image: another volume may get its name) and `created` (seconds since 1970) are a snapshot's. `mounter` and
    the options are how nodes map a volume, where its StorageClass says so.
    `original_name` is the name of an imported image before. `annotations` are for people only. `group` is the leaf of
    the group of a snapshot that is a member of one, `members` are a group's, in the order of their names.
    """

    image: str
    stamp: Stamp
    source: Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{0,107}\Z")] = ""
    source_id: str = ""
    created: Annotated[float, msgspec.Meta(ge=0, le=LAST_SECOND)] = msgspec.field(default=0.0, name="cut")
    depth: int = 0
    mounter: str = ""
    map_options: str = ""
    unmap_options: str = ""
    original_name: str = msgspec.field(default="", name="was")
    annotations: dict[str, str] = msgspec.field(default_factory=dict, name="people")
    group: str = ""
    members: tuple[Member, ...] = ()
    version: int = VERSION


def encode(label: Label) -> str:
    return msgspec.json.encode(label).decode()


def decode(image: str, metadata: Mapping[str, str], size: int) -> Label | None:
    """Return the label of an image of this size; None while the image is incomplete.

    Raises FailedPrecondition when the label is damaged.
    """
    if KEY not in metadata or size < SMALLEST:
        return None
    try:
        label = msgspec.json.decode(metadata[KEY], type=Label)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FailedPrecondition(
            f"image-meta {KEY} of image {image} is damaged: {error}; write it again with 'rbd image-meta set', see "
            "Recovery in docs/rbd.md, or rename the image"
        ) from None
    if label.version > VERSION:
        raise FailedPrecondition(
            f"image-meta {KEY} of image {image} has version {label.version}, and this driver reads versions up to "
            f"{VERSION}; upgrade the driver"
        )
    return label if label.image == image else None


def blank_state(label: Label, metadata: Mapping[str, str]) -> Blank:
    """Return how a volume's device can be proven to hold no data: bytes that were never written read as zeros."""
    state = metadata.get(FORMAT, "")
    if label.stamp.source or label.stamp.imported or state == FORMATTED:
        return Blank.NEVER
    return Blank.INTERRUPTED if state == FORMATTING else Blank.ZEROED


def owner_hash(driver: str, cluster: str) -> str:
    """Return 8 characters that stand for a driver in a cluster."""
    return hashlib.sha256(f"{driver}\n{cluster}".encode()).hexdigest()[:8]


def name_prefix(kind: str, driver: str, cluster: str) -> str:
    """Return the beginning of the names of all images of this kind."""
    return f"csi-{_WORDS[kind]}-{owner_hash(driver, cluster)}-"


def temporary_snapshot(kind: str, leaf: str) -> str:
    """Return the name of the snapshot from which the volume or snapshot with this leaf is copied."""
    return f"{_TEMPORARY}{_WORDS[kind]}-{leaf}"


def is_temporary(snapshot: str) -> bool:
    return snapshot.startswith(_TEMPORARY)


def is_own_snapshot(snapshot: str) -> bool:
    """Return whether the driver gives snapshots such a name."""
    return snapshot == BASE_SNAPSHOT or is_temporary(snapshot)


def copy_of(snapshot: str) -> tuple[str, str]:
    """Return kind and leaf of what is copied from a temporary snapshot; the reverse of `temporary_snapshot`."""
    word, _, leaf = snapshot.removeprefix(_TEMPORARY).partition("-")
    return next((kind for kind, name in _WORDS.items() if name == word), ""), leaf


def checked_leaf(kind: str, handle: str, place: str = "") -> str:
    """Return the leaf of a handle that begins with `place`. Raises NotFound for one of a shape that the driver never
    creates.
    """
    leaf = handle.removeprefix(place)
    if not handle.startswith(place) or not ids.LEAF_SHAPE.fullmatch(leaf):
        raise missing(kind, handle)
    return leaf


def leaf_for(name: str) -> str:
    """Return the leaf for a requested name."""
    return ids.leaf(name)


def place_of(pool: str) -> str:
    """Return the beginning of the handles of another pool than the instance's own."""
    return f"{pool}/"


def source_handle(request: VolumeRequest) -> str:
    """Return the handle of the volume or snapshot that a new volume is copied from."""
    assert request.source is not None, "the core calls with a source"
    return request.source.handle


def empty_image(size: int, metadata: Mapping[str, str]) -> bytes:
    """Return an empty image with its image-meta as `rbd import` reads it: Ceph's export format 2
    (doc/dev/rbd-export.rst).

    The command creates an image as small as this file, sets the image-meta, and resizes the image last. So an image of
    the wanted size is complete, and one smaller than any volume is incomplete, whatever its image-meta says.
    """
    pairs = b"".join(_text(key) + _text(value) for key, value in metadata.items())
    header = b"rbd image v2\n" + (_record(b"M", pairs) if pairs else b"") + b"E"
    resize = b"rbd diff v2\n" + _record(b"s", struct.pack("<Q", size)) + b"e"
    return header + b"rbd image diffs v2\n" + struct.pack("<Q", 1) + resize


def _record(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack("<Q", len(content)) + content


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded
