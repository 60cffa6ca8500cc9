"""Capacity: how much can still be created, and the refusal of what does not fit.

Images are sparse: a volume of 10 GiB may hold nothing today and be full tomorrow. What counts is therefore how far
every existing image can still grow. An image that shares no block with another grows to its size. Images of one
family (source, snapshots, clones by reflink) share blocks: each overwritten block needs a new one, until nothing is
shared any more; what is shared now is at least the largest of them. Snapshots are never written.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from csi_multi.contract import LEAF_SHAPE, CapacityReport, ResourceExhausted

from .client import InvalidLabelFile, read_label
from .config import Config
from .directory import Directory
from .errors import translated
from .labels import Number
from .store import IMAGE, NEW

STAT_BLOCK = 512  # bytes: st_blocks counts in these on every filesystem
KINDS = ("volume", "snapshot")
GRANULARITY = 4096  # bytes: sizes are multiples of this

# Of a label: name, filesystem, inode and change time. Labels are replaced, never rewritten.
_LabelKey = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """What one image counts. `limit` is the size it may grow to, 0 for a complete snapshot."""

    family: str
    limit: int
    allocated: int


class _CountedFields(msgspec.Struct, frozen=True):
    """The fields of a label that count here."""

    family: str
    size: Number = 0
    data: Number = 0
    reflinked: bool = False


class CapacityAccounting:
    """The space of one instance's directory, which it may share with other instances, also of other drivers."""

    def __init__(self, config: Config, directory: Directory) -> None:
        self._config = config
        self._directory = directory
        self._cache: dict[_LabelKey, _CountedFields] = {}

    @translated("reading the capacity")
    def report(self) -> CapacityReport:
        self._directory.prepare()
        minimum = self._config.min_size
        available = self.available()
        if available < minimum:
            available = 0
        maximum = min(available, self._config.max_size or available)
        return CapacityReport(available=available, maximum=maximum, minimum=minimum)

    def available(self, *planned: ImageUsage) -> int:
        """Return the size of the largest volume that can be created beside `planned`; below 0: those do not fit."""
        families: dict[str, list[ImageUsage]] = defaultdict(list)
        for image in (*self._images(), *planned):
            families[image.family].append(image)
        used = growth = 0
        for family in families.values():
            shared = max(image.allocated for image in family)
            never_written = sum(image.allocated for image in family if not image.limit)
            used += shared
            growth += sum(image.limit for image in family) + min(0, never_written - shared)
        free, reserve = self._directory.free()
        available = self._config.overprovision * max(0, free - reserve + used) - used - growth
        return int(available) // GRANULARITY * GRANULARITY

    @contextmanager
    def admit(self, image: ImageUsage, *, written: int = 0) -> Iterator[None]:
        """Let the block create an image if it fits; `written` bytes of it are written at once.

        One image at a time, across processes: at the end of the block it must be on disk, where it counts.
        Raises ResourceExhausted.
        """
        with self._directory.lock_filesystem():
            free, reserve = self._directory.free()
            if self.available(image) < 0 or free - reserve < written:
                left = max(0, min(self.available(), free - reserve) if written else self.available())
                raise ResourceExhausted(
                    f"{max(written, image.limit, image.allocated)} bytes do not fit: {left} bytes are left in "
                    f"{self._directory.path}, not counting its reserve and the growth of existing volumes, also those "
                    "of other instances on its filesystem; delete volumes or snapshots, grow the filesystem, or raise "
                    "overprovision"
                )
            yield

    def _images(self) -> list[ImageUsage]:
        """Read what every image on the filesystem counts, with two cheap calls each: there may be thousands."""
        cache: dict[_LabelKey, _CountedFields] = {}
        images: list[ImageUsage] = []
        with self._directory.sharing() as directories:
            for directory in directories:
                for kind in KINDS:
                    with suppress(FileNotFoundError):  # nothing was created here yet
                        images += self._images_of(directory.descriptor, kind, cache)
        self._cache = cache
        return images

    def _images_of(self, parent: int, kind: str, cache: dict[_LabelKey, _CountedFields]) -> list[ImageUsage]:
        images = []
        directory = os.open(f"{kind}s", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
        try:
            for name in os.listdir(directory):
                if LEAF_SHAPE.fullmatch(name.removeprefix(NEW)):
                    with suppress(FileNotFoundError, NotADirectoryError):
                        fields = self._counted_fields(f"{name}/{kind}.json", directory, cache)
                        status = os.stat(f"{name}/{IMAGE}", dir_fd=directory)
                        images.append(_usage(kind, name, fields, status))
        finally:
            os.close(directory)
        return images

    def _counted_fields(self, file: str, directory: int, cache: dict[_LabelKey, _CountedFields]) -> _CountedFields:
        """Read a label, unless it is the one that was read before."""
        status = os.stat(file, dir_fd=directory, follow_symlinks=False)
        key = (file, status.st_dev, status.st_ino, status.st_ctime_ns)
        fields = self._cache.get(key)
        if fields is None:
            fields = _read(file, directory)
        cache[key] = fields
        return fields


def allocated(image: os.stat_result) -> int:
    """Return how many bytes an image holds on disk."""
    return image.st_blocks * STAT_BLOCK


def _read(file: str, directory: int) -> _CountedFields:
    try:
        return msgspec.json.decode(read_label(file, directory), type=_CountedFields)
    except (InvalidLabelFile, msgspec.DecodeError, RecursionError):
        return _CountedFields(family=file)  # damaged or foreign: it shares blocks with no known image


def _usage(kind: str, name: str, fields: _CountedFields, status: os.stat_result) -> ImageUsage:
    size = allocated(status)
    if kind == "volume":
        return ImageUsage(fields.family, max(status.st_size, fields.size), size)
    if not name.startswith(NEW):
        return ImageUsage(fields.family, 0, size)
    # Once complete it holds `data` bytes: all shared, or all still to be written.
    return (
        ImageUsage(fields.family, 0, fields.data) if fields.reflinked else ImageUsage(fields.family, fields.data, size)
    )
