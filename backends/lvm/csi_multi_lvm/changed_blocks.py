"""Which blocks of a snapshot hold data, and which differ from another snapshot.

Of thin snapshots the pool's metadata tells it, without reading data: what two snapshots do not share may differ. A
thick snapshot holds all of its volume. Snapshots of which one is thick are read and compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from csi_multi.contract import BlockMap, Busy, Extent, OutOfRange, Setting, Unavailable
from csi_multi.host.blockdev import open_descriptor, os_errors_as_unavailable

from . import labels
from .operation import InstanceParts, Operation
from .report import LogicalVolume
from .snapshots import SnapshotManager
from .thin_metadata import ThinMetadata

BLOCK = 4096  # bytes: what is compared is compared in blocks of this length
CHUNK = 256 * BLOCK  # bytes that are read at once

Ranges = Iterator[tuple[int, int]]


class ChangedBlocksReader(Operation):
    def __init__(self, instance: InstanceParts, snapshots: SnapshotManager, setting: Setting) -> None:
        super().__init__(instance)
        self._snapshots = snapshots
        self._metadata = ThinMetadata(setting.host, instance.activation, instance.config.thin_pool)

    def allocated(self, handle: str, offset: int) -> BlockMap:
        """Raises NotFound, OutOfRange, FailedPrecondition, Busy."""
        found = self._get(handle)
        size = _size(found)
        _refuse_beyond(offset, size)
        held = self._metadata.allocated(self._numbers(found)[0]) if self._in_pool(found) else iter([(0, size)])
        return BlockMap(size=size, extents=_extents(held, offset, size))

    def changed(self, base: str, target: str, offset: int) -> BlockMap:
        """Raises NotFound, OutOfRange, FailedPrecondition, Busy."""
        before, found = self._get(base), self._get(target)
        size = _size(found)
        _refuse_beyond(offset, size)
        if self._in_pool(before) and self._in_pool(found):
            changes: Ranges = self._metadata.changed(*self._numbers(before, found))
        else:
            changes = self._compared(before, found, offset // BLOCK * BLOCK)
        return BlockMap(size=size, extents=_extents(changes, offset, size))

    def _get(self, handle: str) -> LogicalVolume:
        found = self._owned_snapshots.get(self._owned_snapshots.leaf(handle))
        self._snapshots.refuse_overflowed(found)
        return found

    def _in_pool(self, found: LogicalVolume) -> bool:
        return found.thin and found.pool == self._config.thin_pool

    def _numbers(self, *snapshots: LogicalVolume) -> list[int]:
        """Return the numbers that they have in the pool. Raises Busy for one that was deleted just now."""
        numbers = self._client.thin_ids(*(one.name for one in snapshots))
        for one in snapshots:
            if one.name not in numbers:
                raise Busy(f"another process removed logical volume {one.name} at the same time; try again")
        return [numbers[one.name] for one in snapshots]

    def _compared(self, base: LogicalVolume, target: LogicalVolume, start: int) -> Ranges:
        """Compare two snapshots, which are active until the end. What only the target has differs."""
        both = min(_size(base), _size(target))
        with ExitStack() as stack:
            paths = [stack.enter_context(self._activation.reading(one)) for one in (base, target)]
            with os_errors_as_unavailable(paths[0]):
                descriptors = [stack.enter_context(open_descriptor(path)) for path in paths]
            for at in range(start, both, CHUNK):
                until = min(at + CHUNK, both)
                before, now = (_read(*one, at, until) for one in zip(descriptors, paths, strict=True))
                if before != now:
                    for block in range(0, until - at, BLOCK):
                        if before[block : block + BLOCK] != now[block : block + BLOCK]:
                            yield at + block, min(at + block + BLOCK, until)
        if both < _size(target):
            yield max(start, both), _size(target)


def _read(descriptor: int, path: Path, start: int, end: int) -> bytes:
    """Return the bytes of a range. Raises Unavailable, also for a thick snapshot that has overflowed meanwhile."""
    data = b""
    with os_errors_as_unavailable(path):
        while start + len(data) < end:
            more = os.pread(descriptor, end - start - len(data), start + len(data))
            if not more:
                raise Unavailable(f"{path} ends at byte {start + len(data)}, before the end of its snapshot; try again")
            data += more
    return data


def _size(found: LogicalVolume) -> int:
    """Return the bytes that the snapshot's volume had: those of a thick one are not what it shows itself."""
    return labels.byte_count(found.name, found.tags, labels.SOURCE_SIZE) or found.size


def _refuse_beyond(offset: int, size: int) -> None:
    if offset > size:
        raise OutOfRange(f"offset {offset} is beyond the end of the snapshot at {size} bytes; start below that")


def _extents(ranges: Ranges, offset: int, size: int) -> Iterator[Extent]:
    """Yield what is behind the offset and before the end, what touches as one extent."""
    first = last = 0
    for start, end in ranges:
        end = min(end, size)
        if end <= offset or start >= end:
            continue
        if start == last and last > first:
            last = end
            continue
        if last > first:
            yield Extent(offset=first, length=last - first)
        first, last = start, end
    if last > first:
        yield Extent(offset=first, length=last - first)
