"""Make volumes and snapshots: empty, copied, larger."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from csi_multi.contract import InvalidArgument, OutOfRange, SizeRange, SnapshotRequest, VolumeRequest

from .config import Config, Parameters
from .files import Files
from .health import refuse_incomplete
from .metadata import Format, SnapshotFile, VolumeFile, new_family, sync
from .place import BLOCKS, Place
from .shelf import IMAGE, Shelf
from .space import BLOCK, GRANULARITY, Image, Space
from .still import Stillness


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """What a volume is copied from, and how to hold that still."""

    image: Path
    size: int
    sector_size: int
    family: str
    still: Callable[[bool], AbstractContextManager[None]]


class Maker:
    def __init__(
        self,
        config: Config,
        place: Place,
        volumes: Shelf[VolumeFile],
        snapshots: Shelf[SnapshotFile],
        space: Space,
        stillness: Stillness,
        files: Files,
    ) -> None:
        self._config = config
        self._place = place
        self._volumes = volumes
        self._snapshots = snapshots
        self._space = space
        self._stillness = stillness
        self._files = files

    def create(self, leaf: str, request: VolumeRequest) -> VolumeFile:
        """Make an empty volume. Raises AlreadyExists, OutOfRange, ResourceExhausted."""
        self._volumes.refuse_taken(leaf)
        size = self._size(request.size)
        with self._volumes.building(leaf) as new:
            value = VolumeFile(
                stamp=request.stamp,
                size=size,
                sector_size=_parameters(request).sector_size or self._sector_size(new),
                format=Format.FRESH,
                family=new_family(),
            )
            with self._space.admitting(Image(value.family, value.size, 0)):
                self._volumes.save(new, value)
            self._files.truncate(new / IMAGE, value.size)
        return value

    def restore(self, leaf: str, request: VolumeRequest, source: str) -> VolumeFile:
        """Make a volume from a snapshot. Raises NotFound, and what create raises."""
        self._volumes.refuse_taken(leaf)
        with self._snapshots.holding(source, shared=True):
            found = self._snapshots.read(source)
            image = self._snapshots.image(source)
            origin = _Origin(
                image=image,
                size=refuse_incomplete(image, found.size),
                sector_size=found.sector_size,
                family=found.family,
                still=lambda _: nullcontext(),
            )
            return self._copied(leaf, request, origin)

    def clone(self, leaf: str, request: VolumeRequest, source: str) -> VolumeFile:
        """Make a volume from another. Raises NotFound, and what create raises."""
        self._volumes.refuse_taken(leaf)
        with self._stillness.holding(source) as found:
            image = self._volumes.image(source)
            origin = _Origin(
                image=image,
                size=refuse_incomplete(image, found.size),
                sector_size=found.sector_size,
                family=found.family,
                still=partial(self._stillness.still, source),
            )
            return self._copied(leaf, request, origin)

    def snapshot(self, leaf: str, request: SnapshotRequest, source: str) -> SnapshotFile:
        """Cut a snapshot of a volume. Raises AlreadyExists, NotFound, ResourceExhausted."""
        self._snapshots.refuse_taken(leaf)
        with self._stillness.holding(source) as found, self._snapshots.building(leaf) as new:
            image = self._volumes.image(source)
            shares = self._files.can_reflink(new)
            value = SnapshotFile(
                stamp=request.stamp,
                source=request.source,
                created=0,
                size=refuse_incomplete(image, found.size),
                sector_size=found.sector_size,
                data=_allocated(image),
                family=found.family if shares else new_family(),
                reflinked=shares,
            )
            counted = Image(value.family, 0 if shares else value.data, value.data if shares else 0)
            with self._space.admitting(counted, now=0 if shares else value.data):
                self._snapshots.save(new, value)
            with self._stillness.still(source, shares):
                value = msgspec.structs.replace(value, created=time.time_ns())
                self._files.fill(new / IMAGE, image, shares=shares)
            self._snapshots.save(new, value)
        return value

    def expand(self, leaf: str, wanted: SizeRange) -> int:
        """Grow a volume, or finish a growth that was interrupted, and return its size."""
        with self._volumes.holding(leaf):
            found = self._volumes.read(leaf)
            image = self._volumes.image(leaf)
            present = refuse_incomplete(image, found.size)
            ceiling = self._config.max_size and max(self._config.max_size, present)
            size = wanted.choose(granularity=GRANULARITY, minimum=present, maximum=ceiling)
            if size > present:
                with self._space.admitting(Image(found.family, size - present, 0)):
                    os.truncate(image, size)
            if size > found.size:
                sync(image)  # the image first: one that is too short would count as damaged
                self._volumes.write(leaf, msgspec.structs.replace(found, size=size))
            return size

    def _copied(self, leaf: str, request: VolumeRequest, origin: _Origin) -> VolumeFile:
        asked = _parameters(request).sector_size
        if asked not in (None, origin.sector_size):
            raise InvalidArgument(
                f"sectorSize: {asked} differs from the source's {origin.sector_size}, which a copy keeps; leave it out"
            )
        size = self._size(request.size, origin.size)
        with self._volumes.building(leaf) as new:
            shares = self._files.can_reflink(new)
            value = VolumeFile(
                stamp=request.stamp,
                size=size,
                sector_size=origin.sector_size,
                format=Format.USED,
                family=origin.family if shares else new_family(),
            )
            data = _allocated(origin.image)
            counted = Image(value.family, size, data if shares else 0)
            with self._space.admitting(counted, now=0 if shares else data):
                self._volumes.save(new, value)
            with origin.still(shares):
                self._files.fill(new / IMAGE, origin.image, shares=shares)
            self._files.truncate(new / IMAGE, size)
        return value

    def _sector_size(self, new: Path) -> int:
        """Return what direct I/O needs: whole blocks where blocks may come to be shared, else sectors."""
        return BLOCKS if self._files.can_reflink(new) else self._place.sector_size()

    def _size(self, wanted: SizeRange, source: int = 0) -> int:
        """Choose a size. Raises OutOfRange, also when the source does not fit in what is asked."""
        size = wanted.choose(
            granularity=GRANULARITY,
            minimum=self._config.min_size,
            maximum=self._config.max_size,
            default=source or self._config.default_size,
        )
        if size < source:
            raise OutOfRange(f"{size} bytes are fewer than the source's {source}; ask for at least those")
        return size


def _parameters(request: VolumeRequest) -> Parameters:
    return request.parameters if isinstance(request.parameters, Parameters) else Parameters()


def _allocated(image: Path) -> int:
    return image.stat().st_blocks * BLOCK
