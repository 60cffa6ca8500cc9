"""The SnapshotMetadata service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._proto import csi_pb2 as pb
from ..contract.backend import ChangedBlocks
from ..contract.errors import InvalidArgument
from ..contract.model import BlockMap, Extent, Snapshot
from ..core.idempotent import require
from ..node import encryption_options
from .service_context import ServiceContext

BLOCKS_PER_MESSAGE = 1024


class SnapshotMetadataService:
    """Allocated and changed blocks of snapshots, as streams."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def GetMetadataAllocated(self, request: pb.GetMetadataAllocatedRequest, deadline: float | None) -> Iterator[Any]:
        instance, handle = self._context.snapshot(request.snapshot_id)
        backend = require(instance.backend, ChangedBlocks, "GetMetadataAllocated")
        overhead = encryption_options.overhead(backend.get_snapshot(handle).stamp.context)
        found = backend.allocated_blocks(handle, request.starting_offset + overhead, dict(request.secrets))
        found = encryption_options.blocks_without(found, overhead)
        return _messages(pb.GetMetadataAllocatedResponse, found, request.max_results)

    def GetMetadataDelta(self, request: pb.GetMetadataDeltaRequest, deadline: float | None) -> Iterator[Any]:
        instance, base = self._context.snapshot(request.base_snapshot_id)
        other, target = self._context.snapshot(request.target_snapshot_id)
        if other is not instance:
            raise InvalidArgument("base_snapshot_id and target_snapshot_id belong to different backends")
        backend = require(instance.backend, ChangedBlocks, "GetMetadataDelta")
        newer = backend.get_snapshot(target)
        _refuse_unrelated(backend.get_snapshot(base), newer)
        overhead = encryption_options.overhead(newer.stamp.context)
        found = backend.changed_blocks(base, target, request.starting_offset + overhead, dict(request.secrets))
        found = encryption_options.blocks_without(found, overhead)
        return _messages(pb.GetMetadataDeltaResponse, found, request.max_results)


def _messages(kind: Any, found: BlockMap, limit: int) -> Iterator[Any]:
    form = pb.BlockMetadataType.FIXED_LENGTH if found.block_size else pb.BlockMetadataType.VARIABLE_LENGTH
    full = min(limit or BLOCKS_PER_MESSAGE, BLOCKS_PER_MESSAGE)
    batch: list[pb.BlockMetadata] = []
    for extent in _checked_order(found):
        batch.append(pb.BlockMetadata(byte_offset=extent.offset, size_bytes=extent.length))
        if len(batch) == full:
            yield kind(block_metadata_type=form, volume_capacity_bytes=found.size, block_metadata=batch)
            batch = []
    if batch:
        yield kind(block_metadata_type=form, volume_capacity_bytes=found.size, block_metadata=batch)


def _checked_order(found: BlockMap) -> Iterator[Extent]:
    """Pass the extents on. Raises for a map out of order or bounds, which would corrupt a backup unnoticed."""
    end = 0
    for extent in found.extents:
        last = extent.offset + (1 if found.block_size else extent.length)  # a fixed block may end beyond the volume
        if extent.offset < end or extent.length <= 0 or last > found.size or found.block_size not in (0, extent.length):
            raise RuntimeError(f"{extent} is not allowed after byte {end} in a map of {found.size} bytes")
        end = extent.offset + extent.length
        yield extent


def _refuse_unrelated(base: Snapshot, target: Snapshot) -> None:
    """Raise InvalidArgument unless base is an older snapshot of the same volume (csi-spec GetMetadataDelta)."""
    if base.source != target.source:
        raise InvalidArgument(f"snapshots {base.handle!r} and {target.handle!r} are not of the same volume")
    if base.created > target.created:
        raise InvalidArgument(f"base snapshot {base.handle!r} is newer than target snapshot {target.handle!r}")
