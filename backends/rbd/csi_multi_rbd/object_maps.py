"""What an image's header and object maps say, read by `rados` by the image's id: also of an image in the trash.

An object map has two bits for each object of the image. A snapshot gets a copy of the image's, which with the feature
`fast-diff` tells what was written since the snapshot before it; when a snapshot is removed, its marks move to the one
after it. No command of rbd tells this of snapshots in the trash namespace.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from .client import Client
from .connection import memory_file
from .errors import CephCommandFailed

ENTRIES_PER_BYTE = 4  # the first object in the highest bits
OBJECT_MAP, FAST_DIFF = 8, 16  # of the features
OBJECT_MAP_INVALID, FAST_DIFF_INVALID = 1, 2  # of the flags
_LOW = 0x55  # the lower bit of each entry
_MAP_HEADER = struct.Struct("<I6xQ")  # of rbd_object_map.*: bytes that follow the first four, entries (BitVector<2>)
_RECORD_VERSION = 8  # of a snapshot: from this on without features and parent
_VALUE = re.compile(r"value \((\d+) bytes\) :")
_ROW = re.compile(r"([0-9a-f]{8,})  ((?:[0-9a-f]{2} +)+)\|")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSnapshot:
    """A Ceph snapshot in an image's header."""

    id: int
    name: str
    size: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """An image's header."""

    id: str
    features: int
    object_size: int
    stripe_count: int  # objects over which data is striped; 1: it is not
    snapshots: tuple[RecordedSnapshot, ...]  # in the order of their creation


def read_record(client: Client, id: str) -> ImageRecord:
    """Read an image's header. Raises ObjectNotFound, CephCommandFailed for one that is not understood."""
    values = _values(client.connection.rados("listomapvals", f"rbd_header.{id}"))
    try:
        found = [_snapshot(value) for key, value in values.items() if key.startswith("snapshot_")]
        return ImageRecord(
            id=id,
            features=int.from_bytes(values["features"], "little"),
            object_size=1 << values["order"][0],
            stripe_count=int.from_bytes(values.get("stripe_count", b"\1"), "little"),
            snapshots=tuple(sorted(found, key=lambda one: one.id)),
        )
    except (struct.error, LookupError, ValueError) as error:
        raise CephCommandFailed(f"the header of image {id} is not understood: {error!r}") from None


def read_map(client: Client, id: str, snapshot: int | None = None) -> bytes:
    """Return the entries of an object map: of an image, or of a snapshot of it. Raises ObjectNotFound."""
    name = f"rbd_object_map.{id}" + (f".{snapshot:016x}" if snapshot is not None else "")
    with memory_file(b"") as file:
        client.connection.rados("get", name, file)
        entries = parse_map(Path(file).read_bytes())
    if entries is None:
        raise CephCommandFailed(f"object map {name} is not understood")
    return entries


def parse_map(raw: bytes) -> bytes | None:
    """Return the entries of an object map; None for one that is not understood."""
    if len(raw) < _MAP_HEADER.size:
        return None
    length, entries = _MAP_HEADER.unpack_from(raw)
    bits = raw[4 + length :][: -(-entries // ENTRIES_PER_BYTE)]
    return bits if len(bits) * ENTRIES_PER_BYTE >= entries else None


def existing(entries: bytes) -> bytes:
    """Return a map with an entry 1 for every object that exists."""
    value = int.from_bytes(entries, "big")
    return ((value | value >> 1) & _mask(len(entries))).to_bytes(len(entries), "big")


def changed(maps: Sequence[bytes]) -> bytes:
    """Return a map with an entry 1 for every object that may have changed between the first of these and the last.

    They are the maps of all snapshots of an image between the two. An object that exists, and is not marked as
    unchanged since the snapshot before, has changed; so has one that exists on one side only.
    """
    length = max(len(one) for one in maps)
    mask, found = _mask(length), 0
    values = [int.from_bytes(one.ljust(length, b"\0"), "big") for one in maps]
    for earlier, later in pairwise(values):
        found |= (later ^ later >> 1) | (earlier | earlier >> 1) ^ (later | later >> 1)
    return (found & mask).to_bytes(length, "big")


def marked(entries: bytes, start: int) -> Iterator[int]:
    """Yield the numbers of the objects that have an entry 1, from a number on."""
    for place in range(start // ENTRIES_PER_BYTE, len(entries)):
        if byte := entries[place]:
            for entry in range(ENTRIES_PER_BYTE):
                number = place * ENTRIES_PER_BYTE + entry
                if byte & 0x40 >> 2 * entry and number >= start:
                    yield number


def _mask(length: int) -> int:
    return int.from_bytes(bytes([_LOW]) * length, "big")


def _snapshot(raw: bytes) -> RecordedSnapshot:
    """Read the record of a snapshot: its encoding's version, the oldest version that reads it, length, fields."""
    _, oldest, _, id, length = struct.unpack_from("<BBIQI", raw)
    at = 18 + length
    name = raw[18:at].decode()
    (size,) = struct.unpack_from("<Q", raw, at)
    at += 8
    if oldest < _RECORD_VERSION:
        (skipped,) = struct.unpack_from("<10xI", raw, at)  # features, then the parent with versions and length
        at += 14 + skipped
    (flags,) = struct.unpack_from("<xQ", raw, at)  # behind the protection
    return RecordedSnapshot(id=id, name=name, size=size, flags=flags)


def _values(text: str) -> dict[str, bytes]:
    """Read the output of `rados listomapvals`: each key, the length of its value, and a dump that leaves out zeros."""
    found: dict[str, bytes] = {}
    key: list[str] = []
    value: bytearray | None = None
    for line in text.splitlines():
        if value is None:
            if match := _VALUE.fullmatch(line):
                value = bytearray(int(match[1]))
            else:
                key.append(line)
        elif row := _ROW.match(line):
            at, data = int(row[1], 16), bytes.fromhex(row[2])
            value[at : at + len(data)] = data
        elif not line:
            found["\n".join(key)] = bytes(value)
            key, value = [], None
    return found
