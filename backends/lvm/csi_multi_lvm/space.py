"""What can still be promised in a group or its thin pool, and promising no more.

For thick volumes this follows what lvcreate does: every image of a volume on another disk, from the disks
with most free extents, as much as the smallest of these has, and again with what is left (tried with
lvcreate on groups of uneven disks: tests/test_space.py has the numbers). What it cannot see is how a
disk's free extents are scattered; for options that keep an image together lvcreate may still refuse. One
large volume holds what several could hold together, or a few extents more: so that is told as available.

Thin volumes take space as they are written. So what counts is what all of the pool's volumes and
snapshots, whoever made them, may hold at most, and how full the pool is already.
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

from .config import Config
from .layout import Layout
from .report import LogicalVolume, PhysicalVolume, Report

METADATA = 16 * 2**10  # bytes of the group's metadata that a volume with its tags may take
METADATA_PER_IMAGE = 2 * 2**10  # each image of RAID is two logical volumes of its own


def capacity(report: Report, layout: Layout, config: Config) -> CapacityReport:
    """Return how much of this layout can be made. Raises Unavailable when the thin pool does not exist."""
    row = report.group.extent_size * layout.data
    smallest = -(-max(config.min_size, 1) // row) * row
    available = 0 if _obstacle(report, layout, config) else left(report, layout, config)
    largest = min(available, config.max_size // row * row) if config.max_size else available
    if largest < smallest:
        return CapacityReport(available=0, maximum=0, minimum=smallest)
    return CapacityReport(available=available, maximum=largest, minimum=smallest)


def admit(report: Report, layout: Layout, size: int, config: Config) -> None:
    """Let a volume of so many bytes be made, or raise why not.

    Raises OutOfRange above max_size, ResourceExhausted for what does not fit here, now or ever,
    FailedPrecondition for a pool that shows old data, Unavailable for one that does not exist,
    InvalidArgument for a stripe size that lvcreate would make smaller without being asked.
    """
    extent_size = report.group.extent_size
    needed = layout.extents(size, extent_size) * extent_size
    _refuse_too_large(needed, config)
    if obstacle := _obstacle(report, layout, config):
        raise obstacle
    most = left(report, layout, config)
    if needed > most and needed > (ever := left(report, layout, config, empty=True)):
        raise ResourceExhausted(  # not OutOfRange: the group of another node may be larger
            f"{needed} bytes of type {layout.type} never fit into {_place(report, layout, config)}, which holds "
            f"{ever} at most, beside its reserve and when it is empty; ask for less, or {_more(layout)}"
        )
    _refuse_more(needed, most, report, layout, config)


def admit_growth(report: Report, volume: LogicalVolume, layout: Layout, size: int, config: Config) -> None:
    """Let a volume grow to so many bytes, or raise why not, as `admit` does.

    For thick volumes this is a necessary condition and not all of it: lvextend also minds on which disks
    the volume lies already.
    """
    if size <= volume.size:
        return
    extent_size = report.group.extent_size
    before, after = (layout.extents(one, extent_size) for one in (volume.size, size))
    _refuse_too_large(after * extent_size, config)
    if obstacle := _obstacle(report, layout, config):
        raise obstacle
    if layout.thin:
        _refuse_more((after - before) * extent_size, left(report, layout, config), report, layout, config)
        return
    more = layout.physical(after, extent_size) - layout.physical(before, extent_size)
    images = _spread([disk.free for disk in _usable(report)], layout, 0)
    if more > _free(report, config) or (after - before) // layout.data > images:
        raise ResourceExhausted(
            f"{size - volume.size} bytes more for logical volume {volume.name} do not fit into "
            f"{_place(report, layout, config)}: they take {more} extents of {extent_size} bytes on {layout.images} "
            f"disk(s) at once, and {max(0, _free(report, config))} are free beside its reserve; {_remedies(layout)}"
        )


def left(report: Report, layout: Layout, config: Config, *, empty: bool = False) -> int:
    """Return the bytes of the largest volume that there is space for: now, or in an empty group or pool."""
    return _left_thin(report, config, empty) if layout.thin else _left_thick(report, layout, config, empty)


def _left_thin(report: Report, config: Config, empty: bool) -> int:
    pool, extent_size = _pool(report, config), report.group.extent_size
    promised = sum(one.size for one in report.volumes.values() if one.thin and one.pool == pool.name)
    room = int(pool.size * Fraction(str(config.overprovision))) - (0 if empty else promised)
    return max(0, room) // extent_size * extent_size


def _left_thick(report: Report, layout: Layout, config: Config, empty: bool) -> int:
    disks = _usable(report)
    counts = [disk.extents if empty else disk.free for disk in disks]
    budget = (sum(counts) - _reserve(report, config)) if empty else _free(report, config)
    extent_size = report.group.extent_size
    image = _largest(lambda image: _fits(image, counts, budget, layout, extent_size), max(0, budget))
    return image * layout.data * extent_size


def _fits(image: int, counts: list[int], budget: int, layout: Layout, extent_size: int) -> bool:
    """Whether images of so many extents fit on disks with so many free ones, taking no more than the budget."""
    overhead = layout.overhead(image, extent_size)
    return layout.images * (image + overhead) <= budget and image <= _spread(counts, layout, overhead)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, knowing that all smaller ones do."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _spread(counts: list[int], layout: Layout, overhead: int) -> int:
    """Return how many extents each image gets, all side by side on different disks, as lvcreate takes them.

    It goes on with disks that it began to take from, while there are enough of them, else with the emptiest.
    """
    disks, image = [(free, False) for free in counts if free], 0
    while len(disks) >= layout.images:
        begun = [disk for disk in disks if disk[1]]
        chosen = sorted(begun if len(begun) >= layout.images else disks, reverse=True)[: layout.images]
        taken = chosen[-1][0]
        if taken <= overhead:
            break
        image += taken - overhead
        overhead = 0  # only once, beside the first extents
        if layout.whole:
            break
        for disk in chosen:
            disks.remove(disk)
        disks += [(free - taken, True) for free, _ in chosen if free > taken]
    return image


def _usable(report: Report) -> list[PhysicalVolume]:
    return [disk for disk in report.disks if disk.allocatable and not disk.missing]


def _reserve(report: Report, config: Config) -> int:
    return -(-report.group.extents * config.reserve_percent // 100)


def _free(report: Report, config: Config) -> int:
    """Return the extents that thick volumes may still take. The group's own number may be the newer one."""
    return min(report.group.free, sum(disk.free for disk in _usable(report))) - _reserve(report, config)


def _pool(report: Report, config: Config) -> LogicalVolume:
    pool = report.volumes.get(config.thin_pool)
    where = f"{report.group.name}/{config.thin_pool}"
    if pool is None:
        raise Unavailable(f"thin pool {where} does not exist; create it: lvcreate --type thin-pool -L SIZE -n {where}")
    if not pool.thin_pool:
        raise Unavailable(f"{where} is no thin pool; name one in the instance's thin_pool")
    return pool


def _obstacle(report: Report, layout: Layout, config: Config) -> StorageError | None:
    """Return why no volume of this layout can be made now, whatever its size."""
    group = report.group
    if group.missing or any(disk.missing for disk in report.disks):
        return ResourceExhausted(
            f"{max(1, group.missing)} disk(s) of volume group {group.name} are missing, and LVM changes nothing until "
            f"they are back; attach them, or give them up: vgreduce --removemissing {group.name}"
        )
    if group.metadata_free < (needed := METADATA + METADATA_PER_IMAGE * layout.images):
        return ResourceExhausted(
            f"{group.metadata_free} bytes are left for descriptions in the metadata of volume group {group.name}, and "
            f"a volume may take {needed}; delete volumes or snapshots, or move to a group made with "
            "vgcreate --metadatasize 64m"
        )
    if layout.thin:
        return _pool_obstacle(_pool(report, config), group.name, config)
    if (layout.stripe_size or 0) > group.extent_size:
        return InvalidArgument(
            f"parameters: 'stripeSize': {layout.stripe_size} is more than an extent of volume group {group.name}, and "
            f"LVM would make it smaller; choose {group.extent_size} at most"
        )
    return None


def _pool_obstacle(pool: LogicalVolume, group: str, config: Config) -> StorageError | None:
    if not pool.zeroing:
        return FailedPrecondition(
            f"thin pool {group}/{pool.name} does not zero new blocks, so that volumes could show what others wrote "
            f"there before; remedy: lvchange --zero y {group}/{pool.name}"
        )
    for what, percent in (("data", pool.data_percent), ("metadata", pool.metadata_percent)):
        if percent is not None and percent >= config.pool_full_percent:  # unknown while the pool is inactive
            option = "-L" if what == "data" else "--poolmetadatasize"
            return ResourceExhausted(
                f"the {what} of thin pool {group}/{pool.name} is {percent:g} % full, and from "
                f"{config.pool_full_percent} % on nothing new is made in it; delete volumes or snapshots, or extend "
                f"it: lvextend {option} +SIZE {group}/{pool.name}"
            )
    return None


def _refuse_too_large(size: int, config: Config) -> None:
    if config.max_size and size > config.max_size:
        raise OutOfRange(f"{size} bytes are more than this instance's max_size of {config.max_size}; ask for less")


def _refuse_more(needed: int, most: int, report: Report, layout: Layout, config: Config) -> None:
    if needed > most:
        raise ResourceExhausted(
            f"{needed} bytes of type {layout.type} do not fit into {_place(report, layout, config)}: {most} bytes are "
            f"left {'beside what is promised' if layout.thin else 'beside its reserve'}; {_remedies(layout)}"
        )


def _place(report: Report, layout: Layout, config: Config) -> str:
    group = report.group.name
    return f"thin pool {group}/{config.thin_pool}" if layout.thin else f"volume group {group}"


def _more(layout: Layout) -> str:
    at_once = f" (each volume needs {layout.images} at once)" if layout.images > 1 else ""
    return "extend the pool" if layout.thin else f"add disks with vgextend{at_once}"


def _remedies(layout: Layout) -> str:
    last = "raise overprovision" if layout.thin else "lower reserve_percent"
    return f"delete volumes or snapshots, {_more(layout)}, or {last}"
