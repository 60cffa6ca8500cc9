"""What images count: how far every existing image can still grow.

Images are sparse: a volume of 10 GiB may hold nothing today and be full tomorrow. An image that shares no block with
another grows to its size. Images of one family (source, snapshots, clones by reflink) share blocks: each overwritten
block needs a new one, until nothing is shared any more; what is shared now is at least the largest of them. Snapshots
are never written. So a family needs the sizes of its volumes, and beside them what its snapshots hold, but no more for
these than its largest image holds, because what they hold beyond that is on disk already.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from .client import InvalidLabelFile, read_label
from .labels import Number
from .store import GONE, IMAGE, NEW

STAT_BLOCK = 512  # bytes: st_blocks counts in these on every filesystem
KINDS = ("volume", "snapshot")


@dataclass(frozen=True, slots=True)
class ImageUsage:
    """What one image counts. `limit` is the size it may grow to, 0 for a complete snapshot."""

    family: str
    limit: int
    allocated: int


class CountedImage(NamedTuple):
    """An image, and the inode and change time of the label that was read. Labels are replaced, never rewritten."""

    usage: ImageUsage
    label: tuple[int, int]
    label_bytes: int  # on disk
    fields: CountedFields


class CountedFields(msgspec.Struct, frozen=True):
    """The fields of a label that count here."""

    family: str
    size: Number = 0
    data: Number = 0
    reflinked: bool = False


def count_image(kind: str, name: str, directory: int, known: CountedImage | None) -> CountedImage | None:
    """Look at one image, and at its label if that is another than the one `known` was read from.

    None: it has no label or no image, so nothing was created yet, or it is no entry. Raises OSError.
    """
    file = f"{name}/{kind}.json"
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.stat(file, dir_fd=directory, follow_symlinks=False)
        label = (status.st_ino, status.st_ctime_ns)
        fields = known.fields if known and known.label == label else _read(file, directory)
        image = os.stat(f"{name}/{IMAGE}", dir_fd=directory)
        return CountedImage(_usage(kind, name, fields, image), label, allocated(status), fields)
    return None


def still_held(kind: str, name: str, directory: int, known: CountedImage) -> int:
    """Return how many of the bytes that an image held are still held by it, under this name. Raises OSError."""
    with suppress(FileNotFoundError, NotADirectoryError):
        now = _usage(kind, name, known.fields, os.stat(f"{name}/{IMAGE}", dir_fd=directory))
        return min(now.allocated, known.usage.allocated)
    return 0


def bytes_of(name: str, directory: int) -> int | None:
    """Return how many bytes an entry's directory itself holds on disk, None if there is none. Raises OSError."""
    with suppress(FileNotFoundError):
        return allocated(os.stat(name, dir_fd=directory, follow_symlinks=False))
    return None


def allocated(file: os.stat_result) -> int:
    """Return how many bytes a file or directory holds on disk."""
    return file.st_blocks * STAT_BLOCK


def _read(file: str, directory: int) -> CountedFields:
    try:
        return msgspec.json.decode(read_label(file, directory), type=CountedFields)
    except (InvalidLabelFile, msgspec.DecodeError, RecursionError):
        return CountedFields(family=file)  # damaged or foreign: it shares blocks with no known image


def _usage(kind: str, name: str, fields: CountedFields, status: os.stat_result) -> ImageUsage:
    size = allocated(status)
    if name.startswith(GONE):
        return ImageUsage(fields.family, 0, size)  # nothing writes to it, and its blocks are not free yet
    if kind == "volume":
        return ImageUsage(fields.family, max(status.st_size, fields.size), size)
    if not name.startswith(NEW):
        return ImageUsage(fields.family, 0, size)
    # Once complete it holds `data` bytes: all shared, or all still to be written.
    return (
        ImageUsage(fields.family, 0, fields.data) if fields.reflinked else ImageUsage(fields.family, fields.data, size)
    )


@dataclass(slots=True)
class _Family:
    sizes: int = 0  # of its volumes
    snapshots: int = 0  # bytes that they hold
    allocated: int = 0  # bytes that all of it holds, shared ones counted for each image
    images: int = 0
    largest: int = 0  # bytes that the largest image holds, or fewer
    changed: bool = False

    def add(self, image: ImageUsage, sign: int = 1) -> None:
        self.images += sign
        self.sizes += sign * image.limit
        self.snapshots += sign * (0 if image.limit else image.allocated)
        self.allocated += sign * image.allocated
        if sign > 0:
            self.largest = max(self.largest, image.allocated)
        elif image.allocated >= self.largest:
            self.largest = self.allocated // self.images if self.images else 0

    @property
    def needed(self) -> int:
        return self.sizes + min(self.largest, self.snapshots)

    @property
    def surely_enough(self) -> int:
        return self.sizes + self.snapshots if self.changed else self.needed


class FamilySums:
    """Sums over the families of images, kept up while images come and go."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self.used = 0  # bytes on disk, at least
        self.needed = 0  # bytes for all images once they are full, if nothing was overwritten since settle()
        self.surely_enough = 0  # the same, whatever was overwritten

    def add(self, image: ImageUsage) -> None:
        self._change(image, 1)

    def remove(self, image: ImageUsage) -> None:
        self._change(image, -1)

    def settle(self) -> None:
        """Note that all images have just been looked at."""
        for family in self._families.values():
            family.changed = False
        self.surely_enough = self.needed

    def growth(self, image: ImageUsage) -> tuple[int, int, int]:
        """Return what `used`, `needed` and `surely_enough` would grow by with one more image."""
        before = self._families.get(image.family, _Family())
        after = replace(before, changed=True)
        after.add(image)
        return (
            after.largest - before.largest,
            after.needed - before.needed,
            after.surely_enough - before.surely_enough,
        )

    def _change(self, image: ImageUsage, sign: int) -> None:
        family = self._families.setdefault(image.family, _Family())
        used, needed, enough = family.largest, family.needed, family.surely_enough
        family.add(image, sign)
        family.changed = True
        self.used += family.largest - used
        self.needed += family.needed - needed
        self.surely_enough += family.surely_enough - enough
        if not family.images:
            del self._families[image.family]
