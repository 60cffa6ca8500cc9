"""Grow volumes, and never show old data in the space that is added."""

from __future__ import annotations

from csi_multi.contract import FailedPrecondition, SizeRange, Unavailable

from . import block_io, capacity, labels, wiping
from . import layout as layouts
from .errors import CommandRefused
from .labels import ZEROED_SPACE_PREFIX
from .layout import Layout
from .operation import InstanceParts, Operation
from .report import LogicalVolume
from .volumes import VolumeManager


class VolumeExpander(Operation):
    def __init__(self, instance: InstanceParts, volumes: VolumeManager) -> None:
        super().__init__(instance)
        self._volumes = volumes

    def expand(self, handle: str, wanted: SizeRange) -> int:
        """Grow a volume to a size in the range, and return its size.

        Raises NotFound, OutOfRange, ResourceExhausted, FailedPrecondition for a thick volume that is in use and
        has snapshots.
        """
        leaf = self._owned_volumes.leaf(handle)
        found = self._owned_volumes.get(leaf)
        layout = _layout_of(found)
        maximum = self._config.max_size and max(self._config.max_size, found.size)
        with self._volumes.admission() as report:
            row = report.group.extent_size * layout.data
            size = wanted.choose(granularity=1, minimum=found.size, maximum=maximum)
            if size <= found.size:
                return found.size
            size = wanted.choose(granularity=row, minimum=found.size, maximum=maximum)
            if found.thick_origin and found.active:
                raise FailedPrecondition(
                    f"logical volume {found.name} is in use and has snapshots, so LVM cannot grow it; delete its "
                    "snapshots, or stop the pods that use it"
                )
            capacity.admit_growth(report, found, layout, size, self._config)
            ranges = self._zeroed_ranges(leaf, found, layout, size, report.group.extent_size)
            self._extend(found, layout, size, size // report.group.extent_size, ranges)
        return size

    def _extend(self, found: LogicalVolume, layout: Layout, size: int, extents: int, ranges: list[str]) -> None:
        try:
            if found.thin:
                self._client.extend_thin(found.name, size)
            else:
                self._client.extend(found.name, extents, ranges, same_disks=layout.redundant)
        except CommandRefused as error:
            if ranges:  # nothing was changed
                raise Unavailable(f"{error}; another process took the prepared extents; try again") from None
            raise error.contract_error() from None
        finally:
            self._reports.clear()

    def _zeroed_ranges(self, leaf: str, found: LogicalVolume, layout: Layout, size: int, extent_size: int) -> list[str]:
        """Zero the space for a growth in a logical volume of its own, remove that, and return where the space is.

        A volume in use shows added space at once, so the space must be zeroed before it is added.
        """
        if not wiping.clean(found):
            return []
        if layout.integrity:
            raise FailedPrecondition(
                f"logical volume {found.name} has integrity and is zeroed, so it cannot grow: zeroed space cannot be "
                "added to a volume with integrity, and other space would show old data; copy it to a larger volume"
            )
        name = ZEROED_SPACE_PREFIX + leaf
        if name in self._client.find(name):
            self._volumes.remove_zeroed_space(name)
        extents = (size - found.size) // extent_size
        disks = self._client.disks(found.name) if layout.redundant else ()
        options = ["-l", str(extents), "-Zn", "-Wn", *layout.arguments()]
        try:
            self._client.create(name, options, [self._owned_volumes.owner], disks)
        except CommandRefused as error:
            raise error.contract_error() from None
        try:
            space = self._client.get(name)
            with self._activation.reading(space) as path:
                block_io.zero(path, 0, space.size, lambda _offset: None)
                ranges = self._client.extent_ranges(name)  # while it is open: no other one can have its name
        finally:
            self._volumes.remove_zeroed_space(name)
        return ranges


def _layout_of(found: LogicalVolume) -> Layout:
    """Return a volume's layout, from its tags. Raises FailedPrecondition."""
    return layouts.from_tag(labels.value(found.tags, labels.LAYOUT) or ("thin" if found.thin else "linear"))
