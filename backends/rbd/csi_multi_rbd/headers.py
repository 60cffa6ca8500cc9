"""Images that rbd does not open because their parent is gone: what their objects say, read by `rados`.

`rbd clone` writes the parent into the clone, and only then the clone into the parent. When it is killed between the
two, the parent's snapshot counts no clone and is removed for good with its next removal. A flatten that is killed
before its last step leaves the same, of an image with data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import labels
from .client import Client
from .connection import memory_file
from .errors import ObjectNotFound
from .object_maps import parse_map


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    id: str
    metadata: dict[str, str]  # of the image-meta: the label only
    watchers: tuple[str, ...]
    has_data: bool | None  # whether it has objects of its own; None: it has no object map

    @property
    def may_hold_data(self) -> bool:
        """Return whether somebody may have written to it.

        Without an object map that is so from the moment on when rbd has copied the image-meta of the parent, which all
        sources of the driver have: it returns only afterwards.
        """
        return bool(self.metadata) if self.has_data is None else self.has_data


def read(client: Client, image: str) -> ImageHeader:
    """Return what the objects of an image say. Raises ObjectNotFound."""
    id = _read(client, "get", f"rbd_id.{image}")[4:].decode()
    header = f"rbd_header.{id}"
    label = f"metadata_{labels.KEY}"
    labelled = label in client.connection.rados("listomapkeys", header).split()
    text = _read(client, "getomapval", header, label).decode(errors="replace") if labelled else ""
    objects = _read_if_exists(client, "get", f"rbd_object_map.{id}")
    return ImageHeader(
        id=id,
        metadata={labels.KEY: text} if labelled else {},
        watchers=tuple(client.connection.rados("listwatchers", header).split("\n")[:-1]),
        has_data=None if objects is None else _any_object(objects),
    )


def _read(client: Client, *words: str) -> bytes:
    with memory_file(b"") as file:
        client.connection.rados(*words, file)
        return Path(file).read_bytes()


def _read_if_exists(client: Client, *words: str) -> bytes | None:
    try:
        return _read(client, *words)
    except ObjectNotFound:
        return None


def _any_object(raw: bytes) -> bool:
    """Return whether an object map has an entry other than "nonexistent"; also for one that is not understood."""
    entries = parse_map(raw)
    return entries is None or any(entries)
