"""How much can still be promised, and promising no more.

Images are sparse: a volume of 10 GiB may hold nothing yet, and may fill up tomorrow. So what counts
is how far everything that exists can still grow. An image that shares no block with another grows to
its size. Images of one family (source, snapshots, clones by reflink) share blocks: whatever is
overwritten needs a block of its own, down to where nothing is shared any more, while what is shared
now is at least the largest of them. Snapshots are never written.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from csi_multi.contract import LEAF_SHAPE, ResourceExhausted

from .config import Config
from .metadata import SnapshotFile, VolumeFile
from .place import Place
from .shelf import IMAGE, NEW, Shelf

log = logging.getLogger(__name__)

BLOCK = 512  # st_blocks counts in these, whatever the filesystem's own
GRANULARITY = 4096  # sizes are multiples of this

_Key = tuple[int, int]  # a metadata file's inode and change time: metadata is replaced, never rewritten


@dataclass(frozen=True, slots=True)
class Image:
    """What one image counts: `grows` is the size it may grow to, 0 for a finished snapshot."""

    family: str
    grows: int
    allocated: int


class _Facts(msgspec.Struct, frozen=True):
    """The part of a metadata file that counts here."""

    family: str
    size: int = 0
    data: int = 0
    reflinked: bool = False


class Space:
    """The space below one directory."""

    def __init__(
        self, config: Config, place: Place, volumes: Shelf[VolumeFile], snapshots: Shelf[SnapshotFile]
    ) -> None:
        self._ratio = config.overprovision
        self._place = place
        self._volumes = volumes
        self._snapshots = snapshots
        self._known: dict[str, tuple[_Key, _Facts]] = {}  # by metadata file

    def available(self, *more: Image) -> int:
        """Return how large a volume can be made now, beside `more`; below 0: those do not fit."""
        families: dict[str, list[Image]] = defaultdict(list)
        for image in (*self._images(), *more):
            families[image.family].append(image)
        used = growth = 0
        for family in families.values():
            shared = max(image.allocated for image in family)
            kept = sum(image.allocated for image in family if not image.grows)
            used += shared
            growth += sum(image.grows for image in family) + min(0, kept - shared)
        free, reserve = self._place.free()
        room = self._ratio * max(0, free - reserve + used) - used - growth
        return int(room) // GRANULARITY * GRANULARITY

    @contextmanager
    def admitting(self, image: Image, *, now: int = 0) -> Iterator[None]:
        """Let the block make an image, of which `now` bytes are written at once, if it fits.

        One at a time, across processes: at the end of the block it must be on disk and so be counted.
        Raises ResourceExhausted.
        """
        with self._place.alone():
            free, reserve = self._place.free()
            if self.available(image) < 0 or free - reserve < now:
                left = max(0, min(self.available(), free - reserve) if now else self.available())
                raise ResourceExhausted(
                    f"{max(now, image.grows, image.allocated)} bytes do not fit: {left} bytes are left in "
                    f"{self._place.directory} beside its reserve and what existing volumes may grow by; "
                    "delete volumes or snapshots, grow the filesystem, or raise overprovision"
                )
            yield

    def _images(self) -> list[Image]:
        """Look at everything there is: two cheap calls each, for there may be thousands."""
        known: dict[str, tuple[_Key, _Facts]] = {}
        images = []
        for shelf in (self._volumes, self._snapshots):
            if not shelf.path.is_dir():
                continue  # nothing was ever made here
            directory = os.open(shelf.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for name in os.listdir(directory):
                    if LEAF_SHAPE.fullmatch(name.removeprefix(NEW)):
                        with suppress(FileNotFoundError, NotADirectoryError):
                            facts = self._facts(f"{name}/{shelf.metadata}", directory, known)
                            status = os.stat(f"{name}/{IMAGE}", dir_fd=directory)
                            images.append(_counted(shelf.kind, name, facts, status))
            finally:
                os.close(directory)
        self._known = known
        return images

    def _facts(self, file: str, directory: int, known: dict[str, tuple[_Key, _Facts]]) -> _Facts:
        """Read a metadata file, unless it is the very one that was read before."""
        status = os.stat(file, dir_fd=directory)
        key = (status.st_ino, status.st_ctime_ns)
        found = self._known.get(file)
        if found is None or found[0] != key:
            found = (key, _read(file, directory))
        known[file] = found
        return found[1]


def _read(file: str, directory: int) -> _Facts:
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=directory)) as reading:
        try:
            return msgspec.json.decode(reading.read(), type=_Facts)
        except msgspec.DecodeError:
            return _Facts(family=file)  # broken or foreign: it shares with nobody we know


def _counted(kind: str, name: str, facts: _Facts, status: os.stat_result) -> Image:
    allocated = status.st_blocks * BLOCK
    if kind == "volume":
        return Image(facts.family, max(status.st_size, facts.size), allocated)
    if name.startswith(NEW):  # complete it will hold `data`: all still to be written, or all shared
        return Image(facts.family, facts.data, allocated) if not facts.reflinked else Image(facts.family, 0, facts.data)
    return Image(facts.family, 0, allocated)
