"""Which blocks of a snapshot hold data, and which differ from another snapshot.

Images of one family share the blocks that neither has changed, so where the filesystem tells the places of blocks
(xfs, btrfs), what differs is known without reading. What the places do not tell, and everything on other filesystems,
is read and compared, as far as it is no hole in both. A map is made while it is read: it takes little memory, whatever
the size, and it has its files open, so that a deletion does not disturb it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from pathlib import Path
from typing import NamedTuple

from csi_multi.contract import BlockMap, Extent, OutOfRange, Unavailable
from csi_multi.host import file_extents

from .directory import Directory
from .errors import translated
from .group_store import SnapshotStore
from .health import complete_size
from .labels import SnapshotLabel

BLOCK = 4096  # bytes: extents begin and end at multiples of this
CHUNK = 256 * BLOCK  # bytes that are read at once to be compared


class _Range(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedBlocksReader:
    directory: Directory
    snapshots: SnapshotStore

    @translated("reading the allocated blocks of a snapshot")
    def allocated(self, handle: str, offset: int) -> BlockMap:
        """Raises NotFound, OutOfRange."""
        image = self._open(handle)
        start = _start(offset, image.size)
        return BlockMap(size=image.size, extents=_extents(_allocated(image, start), image.size))

    @translated("reading the changed blocks of a snapshot")
    def changed(self, base: str, target: str, offset: int) -> BlockMap:
        """Raises NotFound, OutOfRange."""
        before, image = self._open(base), self._open(target)
        start = _start(offset, image.size)
        return BlockMap(size=image.size, extents=_extents(_changed(before, image, start), image.size))

    def _open(self, handle: str) -> _Image:
        leaf = self.snapshots.leaf(handle)
        self.directory.require_ready()
        label = self.snapshots.read(leaf)
        path = self.snapshots.image(leaf)
        complete_size(path, label.size)
        return _Image(path, label)


class _Image:
    """The image of a snapshot, open until nobody has this object any more, or it is closed."""

    def __init__(self, path: Path, label: SnapshotLabel) -> None:
        self.path = path
        self.size = label.size
        self.family = label.family if label.reflinked else ""
        # Whether its filesystem tells the places of blocks that files share.
        self.tells_places = file_extents.can_share_blocks(path)
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range; there are zeros behind the end. Raises OSError, Unavailable."""
        data = b""
        while start + len(data) < min(end, self.size):
            more = os.pread(self.descriptor, min(end, self.size) - start - len(data), start + len(data))
            if not more:
                raise Unavailable(f"{self.path} became shorter while it was read; find the program that writes to it")
            data += more
        return data.ljust(end - start, b"\0")


def _start(offset: int, size: int) -> int:
    """Return where a map begins that was requested from an offset. Raises OutOfRange."""
    if offset > size:
        raise OutOfRange(f"offset {offset} is beyond the end of the snapshot at {size} bytes; start below that")
    return size if offset == size else offset // BLOCK * BLOCK


def _allocated(image: _Image, start: int) -> Iterator[_Range]:
    with translated("reading the allocated blocks of a snapshot"):
        yield from (_Range(*one) for one in file_extents.data_ranges(image.descriptor, start, image.size))
        image.close()


def _changed(base: _Image, target: _Image, start: int) -> Iterator[_Range]:
    with translated("reading the changed blocks of a snapshot"):
        if target.family and target.family == base.family and target.tells_places:
            for one in file_extents.unshared(base.descriptor, target.descriptor, start, target.size):
                if one.certain:
                    yield _Range(one.start, one.end)
                else:
                    yield from _unequal(base, target, one.start, one.end)
        else:
            yield from _unequal(base, target, start, target.size)
        base.close()
        target.close()


def _unequal(base: _Image, target: _Image, start: int, end: int) -> Iterator[_Range]:
    """Compare what is no hole in both."""
    data = merge(*(file_extents.data_ranges(one.descriptor, start, end) for one in (base, target)))
    for first, last in _aligned(data, end):
        for at in range(first, last, CHUNK):
            until = min(at + CHUNK, last)
            one, other = base.read(at, until), target.read(at, until)
            if one != other:
                for block in range(0, until - at, BLOCK):
                    if one[block : block + BLOCK] != other[block : block + BLOCK]:
                        yield _Range(at + block, min(at + block + BLOCK, until))


def _extents(ranges: Iterator[_Range], size: int) -> Iterator[Extent]:
    return (Extent(offset=start, length=end - start) for start, end in _aligned(ranges, size))


def _aligned(ranges: Iterable[tuple[int, int]], size: int) -> Iterator[_Range]:
    """Widen ranges, which are in the order of their beginnings, to whole blocks, and join those that touch."""
    first = last = -1
    for start, end in ranges:
        begin, until = start // BLOCK * BLOCK, min(-(-end // BLOCK) * BLOCK, size)
        if begin <= last:
            last = max(last, until)
            continue
        if last > first:
            yield _Range(first, last)
        first, last = begin, until
    if last > first:
        yield _Range(first, last)
