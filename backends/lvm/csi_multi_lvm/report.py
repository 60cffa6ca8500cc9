"""What LVM reports, as values. Sizes are bytes, extents are counts of Group.extent_size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalVolume:
    """One visible logical volume. What only an active one can tell is false, or None, while it is not."""

    name: str
    uuid: str  # of the device in the kernel: dm/uuid
    size: int
    tags: frozenset[str] = frozenset()
    layout: frozenset[str] = frozenset()  # linear, striped, raid, raid1, thin, pool, ...
    role: frozenset[str] = frozenset()  # public, origin, thickorigin, snapshot, thicksnapshot, ...
    origin: str = ""
    pool: str = ""
    active: bool = False
    open: bool = False
    suspended: bool = False
    invalid: bool = False  # a thick snapshot that overflowed
    health: str = ""  # partial, "refresh needed", "mismatches exist", out_of_data, metadata_read_only, failed
    data_percent: float | None = None  # of a thin pool, a thin volume, a thick snapshot
    metadata_percent: float | None = None  # of a thin pool
    synced_percent: float | None = None  # of RAID
    zeroing: bool = False  # a thin pool that hands out zeroed blocks

    @property
    def thin(self) -> bool:
        return "thin" in self.layout and "pool" not in self.layout

    @property
    def thin_pool(self) -> bool:
        return "thin" in self.layout and "pool" in self.layout

    @property
    def thick_origin(self) -> bool:
        """Whether it has snapshots that live and die with it."""
        return "thickorigin" in self.role

    @property
    def thick_snapshot(self) -> bool:
        return "thicksnapshot" in self.role


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalVolume:
    name: str
    extents: int
    free: int  # extents
    missing: bool = False
    allocatable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A volume group."""

    name: str
    extent_size: int
    extents: int
    free: int  # extents
    missing: int = 0  # physical volumes
    metadata_free: int = 0  # bytes for descriptions of further logical volumes


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole volume group, as of one moment."""

    group: Group
    volumes: Mapping[str, LogicalVolume]  # by name
    disks: tuple[PhysicalVolume, ...]
