"""Capacity: how much can still be created in a group or its thin pool, and the refusal of what does not fit.

For thick volumes this follows what lvcreate does: it puts every image of a volume on another disk, takes the disks
with most free extents, and from each as many as the smallest of them has; then it repeats this with the rest
(measured with lvcreate on groups of uneven disks: tests/test_capacity.py has the numbers). How a disk's free extents
are scattered is not known, so lvcreate may still refuse options that keep an image together. One large volume holds
as much as several can hold together, or a few extents more, so the reported capacity is that of one volume.

Thin volumes take space when they are written. What counts is the sum of the sizes of all volumes and snapshots in
the pool, whoever created them, and how full the pool is already.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from csi_multi.contract import (
    CapacityReport,
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    ResourceExhausted,
    StorageError,
    Unavailable,
)
from csi_multi.host import sysfs

from . import layout as layouts
from .config import Config, Parameters
from .layout import Layout
from .report import LogicalVolume, PhysicalVolume, Report
from .report_cache import ReportCache

METADATA = 16 * 2**10  # bytes of the group's metadata that a volume with its tags may need
METADATA_PER_IMAGE = 2 * 2**10  # each image of RAID is two logical volumes of its own


class CapacityAccounting:
    """The capacity of an instance, as of the cached report of its group."""

    def __init__(self, config: Config, reports: ReportCache) -> None:
        self._config = config
        self._reports = reports

    def report(self, parameters: Parameters) -> CapacityReport:
        """Return how much can be created now with these parameters. Raises InvalidArgument, Unavailable."""
        layout = layouts.requested(parameters, self._config)
        return capacity(self._reports.fresh(), layout, self._config)

    def admit(self, report: Report, layout: Layout, size: int) -> None:
        """Return if a volume of so many bytes fits, else raise as the function `admit`.

        The given report may be old, so nothing is refused before a fresh one was read.
        """
        try:
            admit(report, layout, size, self._config)
        except StorageError:
            admit(self._reports.fresh(), layout, size, self._config)


def capacity(report: Report, layout: Layout, config: Config) -> CapacityReport:
    """Return how much can be created with this layout. Raises Unavailable when the thin pool does not exist."""
    row = report.group.extent_size * layout.data  # extents that are allocated together
    smallest = -(-max(config.min_size, 1) // row) * row
    available = 0 if _obstacle(report, layout, config) else free_bytes(report, layout, config)
    largest = min(available, config.max_size // row * row) if config.max_size else available
    if largest < smallest:
        return CapacityReport(available=0, maximum=0, minimum=smallest)
    return CapacityReport(available=available, maximum=largest, minimum=smallest)


def admit(report: Report, layout: Layout, size: int, config: Config) -> None:
    """Return if a volume of so many bytes fits, else raise the reason.

    Raises OutOfRange above max_size, ResourceExhausted for what does not fit now, or does not fit into this group
    even when it is empty, FailedPrecondition for a pool that shows old data, Unavailable for a pool that does not
    exist, InvalidArgument for a stripe size that lvcreate would reduce.
    """
    extent_size = report.group.extent_size
    needed = layout.extents(size, extent_size) * extent_size
    _refuse_too_large(needed, config)
    if obstacle := _obstacle(report, layout, config):
        raise obstacle
    most = free_bytes(report, layout, config)
    if needed > most and needed > (ever := free_bytes(report, layout, config, empty=True)):
        raise ResourceExhausted(  # not OutOfRange: the group of another node may be larger
            f"a {layout.type} volume of {needed} bytes can never fit into {_location(report, layout, config)}: even "
            f"when empty it holds at most {ever} bytes {_limit(layout)}; request less, or {_more(layout)}"
        )
    _refuse_more(needed, most, report, layout, config)


def admit_growth(report: Report, volume: LogicalVolume, layout: Layout, size: int, config: Config) -> None:
    """Return if a volume can grow to so many bytes, else raise the reason as `admit` does.

    For thick volumes this condition is necessary but not sufficient: for lvextend it also matters which disks the
    volume is on already.
    """
    if size <= volume.size:
        return
    extent_size = report.group.extent_size
    before, after = (layout.extents(one, extent_size) for one in (volume.size, size))
    _refuse_too_large(after * extent_size, config)
    if obstacle := _obstacle(report, layout, config):
        raise obstacle
    if layout.thin:
        _refuse_more((after - before) * extent_size, free_bytes(report, layout, config), report, layout, config)
        return
    more = layout.physical(after, extent_size) - layout.physical(before, extent_size)
    images = _spread([disk.free for disk in _usable(report)], layout, 0)
    if more > _free_extents(report, config) or (after - before) // layout.data > images:
        raise ResourceExhausted(
            f"logical volume {volume.name} cannot grow by {size - volume.size} bytes in "
            f"{_location(report, layout, config)}: that takes {more} extents of {extent_size} bytes on {layout.images} "
            f"disk(s) at once, and {max(0, _free_extents(report, config))} are free without its reserve; "
            f"{_remedies(layout)}"
        )


def refuse_large_sectors(report: Report, largest: int) -> None:
    """Raise InvalidArgument when a disk of the group has larger sectors than `largest`, where that is not 0.

    LVM reports no sector sizes, so they are read from sysfs; a disk that cannot be looked up there counts as fitting. A
    volume or pool may be on any disk of the group, and LVM keeps disks of different sectors apart (vgextend refuses).
    """
    for disk in report.disks if largest else ():
        size = sysfs.sector_size(sysfs.find_number(disk.name))
        if size > largest:
            raise InvalidArgument(
                f"parameters: 'blockSize': mkfs refuses blocks of {largest} bytes on disk {disk.name} of volume group "
                f"{report.group.name}, which has sectors of {size} bytes; choose blockSize {size}, or leave it out"
            )


def free_bytes(report: Report, layout: Layout, config: Config, *, empty: bool = False) -> int:
    """Return the bytes of the largest volume that fits: now, or into an empty group or pool."""
    return _free_thin(report, config, empty) if layout.thin else _free_thick(report, layout, config, empty)


def _free_thin(report: Report, config: Config, empty: bool) -> int:
    pool, extent_size = _pool(report, config), report.group.extent_size
    allocated = sum(one.size for one in report.volumes.values() if one.thin and one.pool == pool.name)
    free = int(pool.size * Fraction(str(config.overprovision))) - (0 if empty else allocated)
    return max(0, free) // extent_size * extent_size


def _free_thick(report: Report, layout: Layout, config: Config, empty: bool) -> int:
    disks = _usable(report)
    counts = [disk.extents if empty else disk.free for disk in disks]
    budget = (sum(counts) - _reserve(report, config)) if empty else _free_extents(report, config)
    extent_size = report.group.extent_size
    image = _largest(lambda image: _fits(image, counts, budget, layout, extent_size), max(0, budget))
    return image * layout.data * extent_size


def _fits(image: int, counts: list[int], budget: int, layout: Layout, extent_size: int) -> bool:
    """Return whether images of so many extents fit on disks with these counts of free extents, within the budget."""
    overhead = layout.overhead(image, extent_size)
    return layout.images * (image + overhead) <= budget and image <= _spread(counts, layout, overhead)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, if all smaller ones fit, too."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _spread(counts: list[int], layout: Layout, overhead: int) -> int:
    """Return how many extents each image can get, with every image on another disk, as lvcreate allocates them.

    lvcreate continues with disks that it already took extents from while there are enough of them, otherwise with
    those that have most free extents.
    """
    disks, image = [(free, False) for free in counts if free], 0
    while len(disks) >= layout.images:
        begun = [disk for disk in disks if disk[1]]
        chosen = sorted(begun if len(begun) >= layout.images else disks, reverse=True)[: layout.images]
        taken = chosen[-1][0]
        if taken <= overhead:
            break
        image += taken - overhead
        overhead = 0  # it is needed only once, with the first extents
        if layout.keeps_images_together:
            break
        for disk in chosen:
            disks.remove(disk)
        disks += [(free - taken, True) for free, _ in chosen if free > taken]
    return image


def _usable(report: Report) -> list[PhysicalVolume]:
    return [disk for disk in report.disks if disk.allocatable and not disk.missing]


def _reserve(report: Report, config: Config) -> int:
    return -(-report.group.extents * config.reserve_percent // 100)


def _free_extents(report: Report, config: Config) -> int:
    """Return the extents that thick volumes may still take. The group's own count may be newer than the disks'."""
    return min(report.group.free, sum(disk.free for disk in _usable(report))) - _reserve(report, config)


def _pool(report: Report, config: Config) -> LogicalVolume:
    pool = report.volumes.get(config.thin_pool)
    where = f"{report.group.name}/{config.thin_pool}"
    if pool is None:
        raise Unavailable(
            f"thin pool {where} does not exist; create it with lvcreate --type thin-pool -L SIZE -n {where}"
        )
    if not pool.thin_pool:
        raise Unavailable(f"{where} is not a thin pool; set the instance's thin_pool to one")
    return pool


def _obstacle(report: Report, layout: Layout, config: Config) -> StorageError | None:
    """Return why no volume of this layout can be created now, whatever its size."""
    group = report.group
    if group.missing or any(disk.missing for disk in report.disks):
        return ResourceExhausted(
            f"{max(1, group.missing)} disk(s) of volume group {group.name} are missing, and LVM changes nothing in the "
            f"group until they are back; attach them, or remove them with vgreduce --removemissing {group.name}"
        )
    if group.metadata_free < (needed := METADATA + METADATA_PER_IMAGE * layout.images):
        return ResourceExhausted(
            f"the metadata of volume group {group.name} has {group.metadata_free} bytes left, and another volume may "
            f"need {needed}; delete volumes or snapshots, or use a group created with vgcreate --metadatasize 64m"
        )
    if layout.thin:
        return _pool_obstacle(_pool(report, config), group.name, config)
    if (layout.stripe_size or 0) > group.extent_size:
        return InvalidArgument(
            f"parameters: 'stripeSize': {layout.stripe_size} is more than an extent of volume group {group.name}, and "
            f"LVM would reduce it; choose at most {group.extent_size}"
        )
    return None


def _pool_obstacle(pool: LogicalVolume, group: str, config: Config) -> StorageError | None:
    if not pool.zeroing:
        return FailedPrecondition(
            f"thin pool {group}/{pool.name} does not zero the blocks it allocates, so volumes could show data of "
            f"deleted ones; enable that with lvchange --zero y {group}/{pool.name}"
        )
    for what, percent in (("data", pool.data_percent), ("metadata", pool.metadata_percent)):
        if percent is not None and percent >= config.pool_full_percent:  # None while the pool is inactive
            option = "-L" if what == "data" else "--poolmetadatasize"
            return ResourceExhausted(
                f"the {what} of thin pool {group}/{pool.name} is {percent:g} % full, and nothing is created in it from "
                f"{config.pool_full_percent} % on; delete volumes or snapshots, or extend the pool with "
                f"lvextend {option} +SIZE {group}/{pool.name}"
            )
    return None


def _refuse_too_large(size: int, config: Config) -> None:
    if config.max_size and size > config.max_size:
        raise OutOfRange(
            f"{size} bytes are more than the instance's max_size of {config.max_size} bytes; request less, or raise it"
        )


def _refuse_more(needed: int, most: int, report: Report, layout: Layout, config: Config) -> None:
    if needed > most:
        raise ResourceExhausted(
            f"{_location(report, layout, config)} has {most} bytes left {_limit(layout)} for a {layout.type} volume, "
            f"{needed} were requested; {_remedies(layout)}"
        )


def _location(report: Report, layout: Layout, config: Config) -> str:
    group = report.group.name
    return f"thin pool {group}/{config.thin_pool}" if layout.thin else f"volume group {group}"


def _limit(layout: Layout) -> str:
    return "within its overprovisioning" if layout.thin else "without its reserve"


def _more(layout: Layout) -> str:
    at_once = f" (each volume needs {layout.images} at once)" if layout.images > 1 else ""
    return "extend the pool" if layout.thin else f"add disks with vgextend{at_once}"


def _remedies(layout: Layout) -> str:
    last = "raise overprovision" if layout.thin else "lower reserve_percent"
    return f"delete volumes or snapshots, {_more(layout)}, or {last}"
