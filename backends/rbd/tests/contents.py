"""Read and write an image's bytes without a kernel that maps it: by the output of `rbd export-diff`.

The format (Ceph's documentation, "RBD Incremental Backup"): a line, then records of one letter: s and the size, w and
offset, length and data, z and offset and length of zeros, e at the end. Numbers have 64 bits, little end first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ceph import Cluster

HEAD = b"rbd diff v1\n"


def read(cluster: Cluster, spec: str, offset: int, length: int) -> bytes:
    """Return bytes of an image. What was never written is zeros."""
    found = bytearray(length)
    for start, data in _written(_run(cluster, "export-diff", spec, "-")):
        first, last = max(start, offset), min(start + len(data), offset + length)
        if first < last:
            found[first - offset : last - offset] = data[first - start : last - start]
    return bytes(found)


def write(cluster: Cluster, spec: str, offset: int, data: bytes) -> None:
    """Write bytes of an image."""
    _run(cluster, "import-diff", "-", spec, given=HEAD + b"w" + struct.pack("<QQ", offset, len(data)) + data + b"e")


def _run(cluster: Cluster, *words: str, given: bytes = b"") -> bytes:
    return cluster.run_bytes("rbd", *words, "--no-progress", given=given)


def _written(text: bytes) -> Iterator[tuple[int, bytes]]:
    assert text.startswith(HEAD)
    at = len(HEAD)
    while (letter := text[at : at + 1]) != b"e":
        at += 1
        if letter in (b"f", b"t"):  # names of snapshots
            at += 4 + struct.unpack_from("<I", text, at)[0]
        elif letter == b"s":
            at += 8
        else:
            offset, length = struct.unpack_from("<QQ", text, at)
            at += 16
            if letter == b"w":
                yield offset, text[at : at + length]
                at += length
