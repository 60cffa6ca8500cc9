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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csi_multi.errors import ResourceExhausted

from .config import Config
from .guard import held
from .handles import LEAF_SHAPE
from .metadata import SnapshotFile, VolumeFile
from .place import Place
from .shelf import NEW, Shelf

log = logging.getLogger(__name__)

BLOCK = 512  # st_blocks counts in these, whatever the filesystem's own
GRANULARITY = 4096  # sizes are multiples of this


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
        self._known: dict[str, tuple[tuple[int, int], _Facts]] = {}  # by metadata file: its inode and change time

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
        with held(self._place.directory, wait=True):
            free, reserve = self._place.free()
            if self.available(image) < 0 or free - reserve < now:
                left = max(0, min(self.available(), free - reserve) if now else self.available())
                raise ResourceExhausted(
                    f"{max(now, image.grows, image.allocated)} bytes do not fit: {left} bytes are left in "
                    f"{self._place.directory} beside its reserve and what existing volumes may grow by; "
                    "delete volumes or snapshots, grow the filesystem, or raise overprovision"
                )
            yield

    def _images(self) -> Iterable[Image]:
        known: dict[str, tuple[tuple[int, int], _Facts]] = {}
        for shelf, growing in ((self._volumes, True), (self._snapshots, False)):
            for name in os.listdir(shelf.path):
                if LEAF_SHAPE.fullmatch(name.removeprefix(NEW)):
                    with suppress(FileNotFoundError, NotADirectoryError):
                        yield self._image(shelf, name, growing, known)
        self._known = known

    def _image(
        self,
        shelf: Shelf[VolumeFile] | Shelf[SnapshotFile],
        name: str,
        growing: bool,
        known: dict[str, tuple[tuple[int, int], _Facts]],
    ) -> Image:
        facts = self._facts(shelf.file(name), known)
        status = shelf.image(name).stat()
        allocated = status.st_blocks * BLOCK
        if growing:
            return Image(facts.family, max(status.st_size, facts.size), allocated)
        if name.startswith(NEW):  # complete it will hold `data`, by writing them or by sharing them
            return Image(facts.family, 0 if facts.reflinked else facts.data, max(allocated, facts.data))
        return Image(facts.family, 0, allocated)

    def _facts(self, file: Path, known: dict[str, tuple[tuple[int, int], _Facts]]) -> _Facts:
        """Read a metadata file, unless it is the one that was read before."""
        status = file.stat()
        key = (status.st_ino, status.st_ctime_ns)
        found = self._known.get(str(file))
        if found is None or found[0] != key:
            try:
                facts = msgspec.json.decode(file.read_bytes(), type=_Facts)
            except msgspec.DecodeError:
                facts = _Facts(family=str(file))  # broken or foreign: it shares with nobody we know
            found = (key, facts)
        known[str(file)] = found
        return found[1]
