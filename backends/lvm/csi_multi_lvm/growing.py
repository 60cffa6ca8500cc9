"""Grow volumes, without showing old tenants' data in what is added."""

from __future__ import annotations

from csi_multi.contract import FailedPrecondition, SizeRange, Unavailable

from . import contents, space, tags, wiping
from . import layout as layouts
from .activation import Activation
from .config import Config
from .layout import Layout
from .lvm import Lvm, Refused
from .making import Maker
from .names import ANNEX
from .report import LogicalVolume
from .seen import Seen
from .shelf import Shelf
from .work import Work


class Grower(Work):
    def __init__(
        self, config: Config, lvm: Lvm, seen: Seen, activation: Activation, volumes: Shelf, maker: Maker
    ) -> None:
        super().__init__(config, lvm, seen, activation, volumes)
        self._maker = maker

    def grow(self, leaf: str, wanted: SizeRange) -> int:
        """Grow a volume to a size in the range, and return its size. Raises NotFound, OutOfRange,
        ResourceExhausted, FailedPrecondition for a thick volume that is in use and has snapshots.
        """
        found = self._volumes.get(leaf)
        layout = self.layout_of(found)
        ceiling = self._config.max_size and max(self._config.max_size, found.size)
        with self._maker.admission() as report:
            unit = report.group.extent_size * layout.data
            size = wanted.choose(granularity=1, minimum=found.size, maximum=ceiling)
            if size <= found.size:
                return found.size
            size = wanted.choose(granularity=unit, minimum=found.size, maximum=ceiling)
            if found.thick_origin and found.active:
                raise FailedPrecondition(
                    f"volume {found.name} is in use and has snapshots: LVM cannot grow it; delete its snapshots, or "
                    "stop the pods that use it"
                )
            space.admit_growth(report, found, layout, size, self._config)
            places = self._cleaned(leaf, found, layout, size, report.group.extent_size)
            self._extend(found, layout, size, size // report.group.extent_size, places)
        return size

    def layout_of(self, found: LogicalVolume) -> Layout:
        """Return how a volume lies on the disks, from its tags."""
        return layouts.parse(tags.value(found.tags, tags.LAYOUT) or ("thin" if found.thin else "linear"))

    def drop_annex(self, name: str) -> None:
        """Remove space that was to be cleaned for a growth which did not come. Raises InUse, Refused."""
        self._activation.deactivate(name)
        self._lvm.remove(name, f'lv_tags={{"{self._volumes.owner}"}}')

    def _extend(self, found: LogicalVolume, layout: Layout, size: int, extents: int, places: list[str]) -> None:
        try:
            if found.thin:
                self._lvm.extend_to(found.name, size)
            else:
                self._lvm.extend(found.name, extents, places, cling=layout.redundant)
        except Refused as error:
            if places:  # somebody took them meanwhile: nothing was changed
                raise Unavailable(f"{error}; the space that was cleaned is gone, asking again cleans other") from None
            raise error.narrowed() from None
        finally:
            self._seen.forget()

    def _cleaned(self, leaf: str, found: LogicalVolume, layout: Layout, size: int, extent_size: int) -> list[str]:
        """Zero the space to be added while it is not the volume's yet, and return where it is.

        A volume in use shows what is added at once, so it must be clean before.
        """
        if not wiping.clean(found):
            return []
        if layout.integrity:
            raise FailedPrecondition(
                f"volume {found.name} has integrity and is zeroed: space zeroed beforehand cannot be added to it, "
                "and other space would show old data; copy it to a larger volume"
            )
        name = ANNEX + leaf
        if name in self._lvm.look(name):
            self.drop_annex(name)
        extents = (size - found.size) // extent_size
        disks = self._lvm.disks(found.name) if layout.redundant else ()
        words = ["-l", str(extents), "-Zn", "-Wn", *layout.words()]
        try:
            self._lvm.create(name, words, [self._volumes.owner], disks)
        except Refused as error:
            raise error.narrowed() from None
        try:
            annex = self._lvm.look(name)[name]
            with self._activation.reading(annex) as path:
                contents.zero(path, 0, annex.size, lambda _offset: None)
            places = self._lvm.places(name)
        finally:
            self.drop_annex(name)
        return places
