"""Volumes: create, restore, clone, find, get, expand, delete, and their format state."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from csi_multi.contract import (
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    SizeRange,
    Volume,
    VolumeRequest,
    ids,
    not_ours_to_delete,
)

from .capacity import GRANULARITY, CapacityAccounting
from .client import Client, sync_path
from .config import Config, Parameters
from .devices import refuse_attached
from .directory import LARGEST_SECTOR, SMALLEST_SECTOR, Directory
from .errors import translated
from .health import complete_size
from .image_usage import ImageUsage, allocated
from .labels import Format, SnapshotLabel, VolumeLabel, new_token
from .quiesce import Quiescer
from .store import IMAGE, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class _CopySource:
    """The volume or snapshot that a new volume is copied from, and how to quiesce it."""

    image: Path
    size: int
    label: VolumeLabel | SnapshotLabel
    quiesced: Callable[[bool], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeManager:
    config: Config
    directory: Directory
    volumes: Store[VolumeLabel]
    snapshots: Store[SnapshotLabel]
    capacity: CapacityAccounting
    quiescer: Quiescer
    client: Client

    @translated("creating a volume")
    def create(self, request: VolumeRequest) -> Volume:
        """Create an empty volume. Raises AlreadyExists, OutOfRange, ResourceExhausted."""
        self.directory.prepare()
        leaf = ids.leaf(request.name)
        self.volumes.refuse_taken(leaf)
        with self.volumes.building(leaf) as new:
            size = self._size(request.size)
            label = VolumeLabel(
                stamp=request.stamp,
                size=size,
                sector_size=_requested_sector(request) or self._sector_size(new, request.largest_sector),
                format=Format.FRESH,
                family=new_token(),
                id=new_token(),
            )
            with self.capacity.admit(ImageUsage(label.family, size, 0)):
                self.volumes.write(new, label)
            self.client.truncate(new / IMAGE, size)
        return label.to_volume(self.volumes.handle(leaf))

    @translated("restoring a snapshot")
    def restore(self, request: VolumeRequest) -> Volume:
        """Create a volume from a snapshot. Raises NotFound, and what create raises."""
        source = _source_leaf(self.snapshots, request)
        self.directory.prepare()
        leaf = ids.leaf(request.name)
        self.volumes.refuse_taken(leaf)
        with self.volumes.building(leaf) as new, self.snapshots.locked(source, shared=True):
            label = self.snapshots.read(source)
            image = self.snapshots.image(source)
            size = complete_size(image, label.size)
            nothing_writes = _CopySource(image=image, size=size, label=label, quiesced=lambda _: nullcontext())
            made = self._copy(new, request, nothing_writes)
        return made.to_volume(self.volumes.handle(leaf))

    @translated("cloning a volume")
    def clone(self, request: VolumeRequest) -> Volume:
        """Create a volume from another. Raises NotFound, and what create raises."""
        source = _source_leaf(self.volumes, request)
        self.directory.prepare()
        leaf = ids.leaf(request.name)
        self.volumes.refuse_taken(leaf)
        with self.volumes.building(leaf) as new, self.quiescer.source(source) as label:
            image = self.volumes.image(source)
            size = complete_size(image, label.size)
            quiesced = partial(self.quiescer.quiesced, source)
            made = self._copy(new, request, _CopySource(image=image, size=size, label=label, quiesced=quiesced))
        return made.to_volume(self.volumes.handle(leaf))

    def find(self, name: str) -> Volume:
        return self.get(self.volumes.handle(ids.leaf(name)))

    @translated("reading a volume")
    def get(self, handle: str) -> Volume:
        self.directory.require_ready()
        leaf = self.volumes.leaf(handle)
        return self.volumes.read(leaf).to_volume(self.volumes.handle(leaf))

    @translated("deleting a volume")
    def delete(self, handle: str) -> None:
        leaf = self.volumes.leaf(handle)
        self.directory.require_ready()
        self.volumes.finish_removal(leaf)
        with self.volumes.locked(leaf):
            if self.volumes.read(leaf).stamp.imported:  # read() refuses another owner's volume
                raise not_ours_to_delete(handle)
            refuse_attached(handle, self.volumes.image(leaf))
            self.volumes.remove(leaf)

    @translated("expanding a volume")
    def expand(self, request: ExpandRequest) -> Expansion:
        """Grow a volume, or finish a growth that was interrupted."""
        leaf = self.volumes.leaf(request.handle)
        self.directory.require_ready()
        with self.volumes.locked(leaf):
            label = self.volumes.read(leaf)
            image = self.volumes.image(leaf)
            present = complete_size(image, label.size)
            maximum = self.config.max_size and max(self.config.max_size, present)
            size = request.size.choose(granularity=GRANULARITY, minimum=present, maximum=maximum)
            if size > present:
                with self.capacity.admit(ImageUsage(label.family, size - present, 0)):
                    os.utime(image.parent)  # before it: processes that count the volume look at it again
                    os.truncate(image, size)
            if size > label.size:
                sync_path(image)  # before the label: an image shorter than its label's size counts as damaged
                self.volumes.replace(leaf, msgspec.structs.replace(label, size=size))
        return Expansion(size=size, node_required=True)

    def formatting(self, handle: str) -> None:
        """Record that formatting begins. Raises FailedPrecondition when the volume may hold data."""
        if self._advance_format(handle, Format.FORMATTING) is Format.USED:
            raise FailedPrecondition(
                f"volume {handle!r} may hold data and must not be formatted; "
                "use it with its filesystem, or create a new volume"
            )

    def formatted(self, handle: str) -> None:
        """Record that the volume is used from now on."""
        self._advance_format(handle, Format.USED)

    @translated("recording a volume's format state")
    def _advance_format(self, handle: str, state: Format) -> Format:
        """Move a volume's format state forward, never back, and return the state found."""
        leaf = self.volumes.leaf(handle)
        before = self.volumes.read(leaf).format
        if before not in (state, Format.USED):  # in the common case one small read, and no lock
            with self.volumes.locked(leaf):
                label = self.volumes.read(leaf)
                before = label.format
                if before is not Format.USED:
                    self.volumes.replace(leaf, msgspec.structs.replace(label, format=state))
        return before

    def _copy(self, new: Path, request: VolumeRequest, source: _CopySource) -> VolumeLabel:
        """Fill the directory of a volume that is being built."""
        sector_size = source.label.sector_size
        requested = _parameters(request).sector_size
        if requested not in (None, sector_size):
            raise InvalidArgument(
                f"sectorSize {requested} differs from the source's {sector_size}: a copy keeps its source's sector "
                "size; leave the parameter out"
            )
        size = self._size(request.size, source.size)
        reflink = self.client.can_reflink(new)
        label = VolumeLabel(
            stamp=request.stamp,
            size=size,
            sector_size=sector_size,
            format=Format.USED,
            family=source.label.family if reflink else new_token(),
            id=new_token(),
        )
        data = allocated(source.image.stat())
        usage = ImageUsage(label.family, size, data if reflink else 0)
        with self.capacity.admit(usage, written=0 if reflink else data):
            self.volumes.write(new, label)
        with source.quiesced(reflink):
            self.client.copy(source.image, new / IMAGE, reflink=reflink)
        self.client.truncate(new / IMAGE, size)
        return label

    def _sector_size(self, new: Path, largest: int) -> int:
        """Return what direct I/O needs: whole blocks where blocks may come to be shared, else sectors.

        A filesystem of smaller blocks needs smaller sectors; where direct I/O then is refused, the page cache is used.
        """
        size = LARGEST_SECTOR if self.client.can_reflink(new) else self.directory.sector_size()
        return size if not largest or size <= largest else SMALLEST_SECTOR

    def _size(self, requested: SizeRange, source: int = 0) -> int:
        """Choose a size. Raises OutOfRange, also when the source does not fit in what is requested."""
        size = requested.choose(
            granularity=GRANULARITY,
            minimum=self.config.min_size,
            maximum=self.config.max_size,
            default=source or self.config.default_size,
        )
        if size < source:
            raise OutOfRange(f"{size} bytes are fewer than the source's {source}; request at least {source} bytes")
        return size


def _source_leaf(store: Store[VolumeLabel] | Store[SnapshotLabel], request: VolumeRequest) -> str:
    if request.source is None or request.source.kind.value != store.kind:
        raise InvalidArgument(f"the content source must be a {store.kind}; name one")
    return store.leaf(request.source.handle)


def _requested_sector(request: VolumeRequest) -> int | None:
    """Return the class's sectorSize. Raises InvalidArgument for one that the filesystem's blocks are too small for."""
    size = _parameters(request).sector_size
    if size and request.largest_sector and size > request.largest_sector:
        raise InvalidArgument(
            f"sectorSize {size} is larger than a block of the filesystem, blockSize {request.largest_sector}; "
            "remove one of the parameters"
        )
    return size


def _parameters(request: VolumeRequest) -> Parameters:
    return request.parameters if isinstance(request.parameters, Parameters) else Parameters()
