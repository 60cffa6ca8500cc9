"""An empty image with its image-meta, as `rbd import` reads it: Ceph's export format 2 (doc/dev/rbd-export.rst).

The command makes an image as small as this file, writes the image-meta on it, and gives it its size last. So an
image with a size is complete, and one that is smaller than any volume was cut short, whatever is written on it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from .config import MIB

LIMIT = MIB  # bytes: the smallest volume has as many, and a file has fewer


def empty(size: int, metadata: Mapping[str, str]) -> bytes:
    """Return the file for an image of `size` bytes."""
    pairs = b"".join(_text(key) + _text(value) for key, value in metadata.items())
    header = b"rbd image v2\n" + (_record(b"M", pairs) if pairs else b"") + b"E"
    grown = b"rbd diff v2\n" + _record(b"s", struct.pack("<Q", size)) + b"e"
    return header + b"rbd image diffs v2\n" + struct.pack("<Q", 1) + grown


def _record(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack("<Q", len(content)) + content


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded
