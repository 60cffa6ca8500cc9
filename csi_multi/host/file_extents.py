"""Which ranges of a file hold data, and which of them it shares with another file (lseek(2), FIEMAP).

A block that two files share is never written, on a filesystem whose files can share blocks: whoever writes gets another
one. So what two files have at the same place is the same, without reading it.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .loopdev import filesystem_type

_FIEMAP = 0xC020660B  # linux/fiemap.h, linux/fs.h
_SYNC = 1  # FIEMAP_FLAG_SYNC: what is only in memory gets its place first
_HEAD = struct.Struct("=QQLLLL")  # struct fiemap
_EXTENT = struct.Struct("=QQQQQLLLL")  # struct fiemap_extent
_BATCH = 1024  # extents of one call
_SHARING_FILESYSTEMS = (0x58465342, 0x9123683E)  # linux/magic.h: xfs, btrfs


def can_share_blocks(path: Path) -> bool:
    """Whether files of this filesystem can share blocks, and a shared one is never written. Raises OSError."""
    return filesystem_type(path) in _SHARING_FILESYSTEMS


class ExtentFlag(enum.IntFlag):
    """FIEMAP_EXTENT_*: what the kernel says of an extent."""

    LAST = 0x1
    UNKNOWN = 0x2
    DELALLOC = 0x4
    ENCODED = 0x8
    DATA_ENCRYPTED = 0x80
    NOT_ALIGNED = 0x100
    DATA_INLINE = 0x200
    DATA_TAIL = 0x400
    UNWRITTEN = 0x800
    MERGED = 0x1000
    SHARED = 0x2000


# With one of these, the place does not tell the data: it is none, or that of more data than the extent.
_NO_PLACE = int(
    ExtentFlag.UNKNOWN
    | ExtentFlag.DELALLOC
    | ExtentFlag.ENCODED
    | ExtentFlag.DATA_ENCRYPTED
    | ExtentFlag.NOT_ALIGNED
    | ExtentFlag.DATA_INLINE
    | ExtentFlag.DATA_TAIL
)
_UNWRITTEN = int(ExtentFlag.UNWRITTEN)  # the operators of IntFlag cost more than all the rest


class PlacedExtent(NamedTuple):
    """A range of a file, and where the filesystem has it: bytes from a beginning that all its files have in common."""

    offset: int
    place: int
    length: int
    flags: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def data_ranges(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of all that is not a hole, in order, within `start` to `end`. Raises OSError.

    Where the filesystem does not know holes, everything is data. What is not written back yet counts.
    """
    while start < end:
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        if first >= end:
            return
        start = os.lseek(descriptor, first, os.SEEK_HOLE)
        yield first, min(start, end)


def placed(descriptor: int, start: int, end: int) -> list[PlacedExtent]:
    """Return the first extents, _BATCH at most, that reach into a range of a file. Raises OSError.

    EOPNOTSUPP or ENOTTY: the filesystem does not say. An extent may begin before the range and end behind it.
    """
    buffer = bytearray(_HEAD.size + _BATCH * _EXTENT.size)
    _HEAD.pack_into(buffer, 0, start, end - start, _SYNC, 0, _BATCH, 0)
    fcntl.ioctl(descriptor, _FIEMAP, buffer)
    count = _HEAD.unpack_from(buffer)[3]
    found = memoryview(buffer)[_HEAD.size : _HEAD.size + count * _EXTENT.size]
    return [PlacedExtent(one[0], one[1], one[2], one[5]) for one in _EXTENT.iter_unpack(found)]


class Difference(NamedTuple):
    """A range in which two files do not share their blocks. Not `certain`: they may, but their places do not tell."""

    start: int
    end: int
    certain: bool


def unshared(first: int, second: int, start: int, end: int) -> Iterator[Difference]:
    """Yield the ranges in which two open files of one filesystem are not known to be the same, in order.

    Raises OSError. Only where can_share_blocks. Nothing may write to the second file. Holes are the same, and so is
    what was reserved and never written.
    """
    while start < end:
        one, other = placed(first, start, end), placed(second, start, end)
        until = min(_known_until(one, end), _known_until(other, end))
        if placed(first, start, end) == one:  # else its blocks have moved meanwhile, and others may be in their place
            yield from _differences(*_without_common(one, other), start, until)
        else:
            yield Difference(start, until, certain=False)
        start = until


def _known_until(extents: list[PlacedExtent], end: int) -> int:
    return end if len(extents) < _BATCH else min(extents[-1].end, end)


def _without_common(
    one: list[PlacedExtent], other: list[PlacedExtent]
) -> tuple[list[PlacedExtent], list[PlacedExtent]]:
    """Leave out extents that are the same on both sides, which are most: then there is a hole on both sides."""
    mine, theirs = (
        {extent[:3] for extent in each if not extent[3] & (_NO_PLACE | _UNWRITTEN)} for each in (one, other)
    )
    common = mine & theirs
    left, right = ([extent for extent in each if extent[:3] not in common] for each in (one, other))
    return left, right


def _differences(one: list[PlacedExtent], other: list[PlacedExtent], start: int, end: int) -> Iterator[Difference]:
    pending: Difference | None = None
    for first, last, mine, theirs in _side_by_side(one, other, start, end):
        certain = _differ(mine, theirs)
        if certain is None:
            continue
        if pending and pending.end == first and pending.certain == certain:
            pending = Difference(pending.start, last, certain)
            continue
        if pending:
            yield pending
        pending = Difference(first, last, certain)
    if pending:
        yield pending


def _side_by_side(
    one: list[PlacedExtent], other: list[PlacedExtent], start: int, end: int
) -> Iterator[tuple[int, int, PlacedExtent | None, PlacedExtent | None]]:
    """Yield ranges without gaps, each with the extent that it is in on both sides; None: in a hole."""
    edges = sorted({start, end, *(edge for extent in one + other for edge in (extent.offset, extent.end))})
    edges = [edge for edge in edges if start <= edge <= end]
    left, right = iter(one), iter(other)
    mine, theirs = next(left, None), next(right, None)
    for first, last in pairwise(edges):
        while mine and mine.end <= first:
            mine = next(left, None)
        while theirs and theirs.end <= first:
            theirs = next(right, None)
        yield first, last, _reaching(mine, first), _reaching(theirs, first)


def _reaching(extent: PlacedExtent | None, offset: int) -> PlacedExtent | None:
    """Return the extent if an offset is in it and it was written."""
    return extent if extent and extent.offset <= offset and not extent.flags & _UNWRITTEN else None


def _differ(mine: PlacedExtent | None, theirs: PlacedExtent | None) -> bool | None:
    """Return None for what is the same, and otherwise whether it is certain that the blocks are not the same."""
    if any(one and one.flags & _NO_PLACE for one in (mine, theirs)):
        return False
    if mine and theirs:
        return None if mine.place - mine.offset == theirs.place - theirs.offset else True
    return True if mine or theirs else None
