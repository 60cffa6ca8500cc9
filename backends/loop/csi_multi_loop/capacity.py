"""Capacity: how much can still be created, and the refusal of what does not fit (image_usage.py says what counts).

To look at every image costs time for each of them, so between two such looks the answer is an estimate, which is never
too high. The space for all entries (free, or held by them) is the same as at the last look, whatever volumes write or
discard: less only where others take free space, which is seen at once, except while volumes discard as much as that.
More is not believed until the next look. Sizes are exact, also those of other processes, because creations, expansions
and deletions are found as they happen (counted_images.py). What snapshots hold is counted in full for a family that has
changed. All images are looked at again when the estimate does not suffice for a creation, when a report could be too
low by more than a hundredth, and after ten minutes.

A creation that is refused is refused while its entry is on disk, so the look at that time finds less free space than
there is afterwards; most of that an entry shows, but not what more inodes took. So once a creation was given up, in
whatever process, a report that could be too low at all looks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from csi_multi.contract import CapacityReport, ResourceExhausted

from .config import Config
from .counted_images import CountedImages
from .directory import Directory
from .directory_notes import OpenDirectory
from .errors import translated
from .image_usage import ImageUsage

GRANULARITY = 4096  # bytes: sizes are multiples of this
LOOK_SECONDS = 600.0  # after which all images are looked at again
TOLERANCE = 100  # a report may be too low by one part in so many


class CapacityAccounting:
    """The space of one instance's directory, which it may share with other instances, also of other drivers."""

    def __init__(self, config: Config, directory: Directory) -> None:
        self._config = config
        self._directory = directory
        self._lock = threading.Lock()
        self._images = CountedImages(directory.changes)
        self._space = 0  # free, or held by entries, at the last look at all images
        self._looked_at: float | None = None  # when that was; None: never, or it was not finished

    @translated("reading the capacity")
    def report(self) -> CapacityReport:
        self._directory.prepare()
        minimum = self._config.min_size
        with self._directory.sharing() as directories, self._lock:
            self._update(directories, locked=False)
            available, possible = self._available(exact=False)
            tolerated = 0 if self._images.given_up else available // TOLERANCE
            if possible >= minimum and possible - available > tolerated:
                self._look(directories, locked=False)
                available, _ = self._available(exact=True)
        if available < minimum:
            available = 0
        maximum = min(available, self._config.max_size or available)
        return CapacityReport(available=available, maximum=maximum, minimum=minimum)

    @contextmanager
    def admit(self, image: ImageUsage, *, written: int = 0) -> Iterator[None]:
        """Let the block create an image if it fits; `written` bytes of it are written at once.

        One image at a time, across processes: at the end of the block it must be on disk, where it counts.
        Raises ResourceExhausted.
        """
        with self._directory.lock_filesystem() as directories:
            with self._lock:
                self._update(directories, locked=True)
                if self._available(image, exact=False)[0] < 0:
                    self._look(directories, locked=True)
                    if self._available(image, exact=True)[0] < 0:
                        raise self._refusal(image, written)
                free, reserve = self._directory.free()
                if free - reserve < written:
                    raise self._refusal(image, written)
            yield

    def _update(self, directories: Iterable[OpenDirectory], *, locked: bool) -> None:
        looked_at, self._looked_at = self._looked_at, None  # until it is done
        if (
            looked_at is not None
            and time.monotonic() - looked_at < LOOK_SECONDS
            and self._images.update(directories, locked=locked)
        ):
            self._looked_at = looked_at
        else:
            self._look(directories, locked=locked)

    def _look(self, directories: Iterable[OpenDirectory], *, locked: bool) -> None:
        """Look at all images."""
        self._looked_at = None
        self._space = self._images.read(directories, lambda: self._directory.free()[0], locked=locked)
        self._looked_at = time.monotonic()

    def _available(self, planned: ImageUsage | None = None, *, exact: bool) -> tuple[int, int]:
        """Return the size of the largest volume that can be created beside `planned`; below 0: that does not fit.

        The second number is what it may be when all images are looked at. `exact`: they just were.
        """
        sums = self._images.sums
        free, reserve = self._directory.free()
        used, needed, surely_enough = sums.growth(planned) if planned else (0, 0, 0)
        beside = self._images.beside
        space, last, needed = free + sums.used + used, self._space - beside, sums.needed + needed
        if exact:
            return self._left(min(space, last + used), reserve, needed), 0
        possible = self._left(max(space, last), reserve, needed)
        return self._left(min(space, last), reserve, sums.surely_enough + surely_enough), possible

    def _left(self, space: int, reserve: int, needed: int) -> int:
        return int(self._config.overprovision * max(0, space - reserve) - needed) // GRANULARITY * GRANULARITY

    def _refusal(self, image: ImageUsage, written: int) -> ResourceExhausted:
        free, reserve = self._directory.free()
        left = self._available(exact=False)[0]
        left = max(0, min(left, free - reserve) if written else left)
        return ResourceExhausted(
            f"{max(written, image.limit, image.allocated)} bytes do not fit: {left} bytes are left in "
            f"{self._directory.path}, not counting its reserve and the growth of existing volumes, also those "
            "of other instances on its filesystem; delete volumes or snapshots, grow the filesystem, or raise "
            "overprovision"
        )
