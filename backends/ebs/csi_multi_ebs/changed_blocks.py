"""Allocated and changed blocks of snapshots, page by page from EBS's own interface (the EBS direct APIs).

The first page is read before the answer begins, so that a refusal is an error and no broken stream. A page token ends
after an hour; then the list goes on at the block after the last one that was passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from csi_multi.contract import BlockMap, Extent, FailedPrecondition, InvalidToken, NotFound, OutOfRange, Unavailable

from .ec2_cache import Ec2Cache
from .errors import UnrelatedSnapshots
from .resources import GIB, BlockPage, Ec2Snapshot
from .snapshots import to_snapshot

BLOCK_SIZE = 512 * 1024  # bytes, the only one that EBS has

ReadPage = Callable[[int, str], BlockPage]  # the first block, or the token of the page


class BlockReader:
    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache

    def allocated(self, handle: str, offset: int) -> BlockMap:
        """Return the blocks that were written. Raises NotFound, OutOfRange; Unavailable while EC2 copies it."""
        snapshot = self._completed(handle)
        client = self._cache.client
        return _map(snapshot, offset, lambda start, token: client.snapshot_blocks(snapshot.id, start, token))

    def changed(self, base: str, target: str, offset: int) -> BlockMap:
        """Return the blocks that differ. Also raises FailedPrecondition for snapshots without a common history."""
        old, new = self._completed(base), self._completed(target)
        sources = to_snapshot(old).source, to_snapshot(new).source
        if sources[0] != sources[1]:
            raise FailedPrecondition(
                f"snapshot {base!r} is of volume {sources[0]!r} and snapshot {target!r} of volume {sources[1]!r}: only "
                "changes between snapshots of one volume are known; make a full backup of the second one"
            )
        client = self._cache.client
        try:
            return _map(new, offset, lambda start, token: client.changed_blocks(old.id, new.id, start, token))
        except UnrelatedSnapshots as error:
            raise UnrelatedSnapshots(f"{error}; make a full backup of the second snapshot") from error

    def _completed(self, handle: str) -> Ec2Snapshot:
        snapshot = self._cache.snapshot(handle)
        if snapshot.state == "error":
            raise FailedPrecondition(
                f"snapshot {handle!r} has failed ({snapshot.message or 'no reason given'}): it has no data; delete it"
            )
        if snapshot.state != "completed":
            raise Unavailable(
                f"snapshot {handle!r} is {snapshot.state}: EBS lists its blocks once it is completed; try again when "
                "it is ready to use"
            )
        return snapshot


def _map(snapshot: Ec2Snapshot, offset: int, read: ReadPage) -> BlockMap:
    size = snapshot.size * GIB
    if offset > size:
        raise OutOfRange(f"offset {offset} is beyond the end of snapshot {snapshot.id!r}, which has {size} bytes")
    start = offset // BLOCK_SIZE
    if offset == size:
        return BlockMap(size=size, extents=iter(()), block_size=BLOCK_SIZE)
    try:
        first = read(start, "")
    except NotFound as error:  # EC2 has just shown it
        raise Unavailable(f"{error}; EC2 shows the snapshot, so try again") from error
    if first.block_size != BLOCK_SIZE:
        raise Unavailable(
            f"EBS lists blocks of {first.block_size} bytes, and this driver knows blocks of {BLOCK_SIZE} only; use a "
            "newer driver, or make full backups"
        )
    return BlockMap(size=size, extents=_extents(first, start, size, read), block_size=BLOCK_SIZE)


def _extents(page: BlockPage, start: int, size: int, read: ReadPage) -> Iterator[Extent]:
    """Yield the blocks of this page and of those after it, from block `start` on. Raises what stops it, never ends."""
    renewed = False  # whether the last token was refused
    while True:
        for block in page.blocks:
            if block >= start and block * BLOCK_SIZE < size:  # a base may have been larger
                yield Extent(offset=block * BLOCK_SIZE, length=BLOCK_SIZE)
                start, renewed = block + 1, False
        if not page.token:
            return
        try:
            page = read(start, page.token)
        except InvalidToken as error:
            if renewed:
                raise Unavailable(
                    f"{error}; try again: the list can be continued at byte {start * BLOCK_SIZE}"
                ) from error
            page, renewed = read(start, ""), True
