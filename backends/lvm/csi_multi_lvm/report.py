"""What LVM reports about a volume group: its JSON, and the values that the driver works with.

Sizes are bytes; extents are counts of Group.extent_size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

GROUP_FIELDS = "vg_name,vg_uuid,vg_extent_size,vg_extent_count,vg_free_count,vg_missing_pv_count,vg_mda_free"
DISK_FIELDS = "pv_name,pv_pe_count,pv_pe_alloc_count,pv_missing,pv_allocatable"
VOLUME_FIELDS = (
    "lv_uuid,lv_name,lv_size,lv_tags,lv_layout,lv_role,origin,pool_lv,lv_active,lv_device_open,lv_suspended,"
    "lv_snapshot_invalid,lv_health_status,data_percent,metadata_percent,sync_percent"
)
SEGMENT_FIELDS = "lv_name,zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalVolume:
    """A visible logical volume. LVM reports some facts of active volumes only; otherwise they are False or None."""

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
    zeroing: bool = False  # a thin pool that zeroes the blocks it allocates

    @property
    def thin(self) -> bool:
        return "thin" in self.layout and "pool" not in self.layout

    @property
    def thin_pool(self) -> bool:
        return "thin" in self.layout and "pool" in self.layout

    @property
    def thick_origin(self) -> bool:
        """Return whether it has thick snapshots, which are removed with it."""
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
    metadata_free: int = 0  # bytes in which further logical volumes can be described


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole volume group at one moment."""

    group: Group
    volumes: Mapping[str, LogicalVolume]  # by name
    disks: tuple[PhysicalVolume, ...]


# lvm's JSON


class LogicalVolumeRow(msgspec.Struct, kw_only=True):
    lv_name: str
    vg_uuid: str = ""
    lv_uuid: str = ""
    lv_size: int = 0
    lv_tags: str = ""
    lv_layout: str = ""
    lv_role: str = ""
    origin: str = ""
    pool_lv: str = ""
    lv_active: str = ""
    lv_device_open: str = ""
    lv_suspended: str = ""
    lv_snapshot_invalid: str = ""
    lv_health_status: str = ""
    data_percent: str = ""
    metadata_percent: str = ""
    sync_percent: str = ""

    def value(self, group_uuid: str, *, zeroing: bool = False) -> LogicalVolume:
        return LogicalVolume(
            name=self.lv_name,
            uuid="LVM-" + f"{group_uuid}{self.lv_uuid}".replace("-", ""),
            size=self.lv_size,
            tags=frozenset(filter(None, self.lv_tags.split(","))),
            layout=frozenset(self.lv_layout.split(",")),
            role=frozenset(self.lv_role.split(",")),
            origin=self.origin,
            pool=self.pool_lv,
            active=bool(self.lv_active),
            open=self.lv_device_open == "1",
            suspended=self.lv_suspended == "1",
            invalid=self.lv_snapshot_invalid == "1",
            health=self.lv_health_status,
            data_percent=_percent(self.data_percent),
            metadata_percent=_percent(self.metadata_percent),
            synced_percent=_percent(self.sync_percent),
            zeroing=zeroing,
        )


class SegmentRow(msgspec.Struct, kw_only=True):
    lv_name: str
    zero: str = ""
    seg_pe_ranges: str = ""
    thin_id: str = ""


class GroupRow(msgspec.Struct, kw_only=True):
    vg_name: str
    vg_uuid: str
    vg_extent_size: int
    vg_extent_count: int
    vg_free_count: int
    vg_missing_pv_count: int
    vg_mda_free: int

    def value(self) -> Group:
        return Group(
            name=self.vg_name,
            extent_size=self.vg_extent_size,
            extents=self.vg_extent_count,
            free=self.vg_free_count,
            missing=self.vg_missing_pv_count,
            metadata_free=self.vg_mda_free,
        )


class PhysicalVolumeRow(msgspec.Struct, kw_only=True):
    pv_name: str
    pv_pe_count: int
    pv_pe_alloc_count: int
    pv_missing: str
    pv_allocatable: str

    def value(self) -> PhysicalVolume:
        return PhysicalVolume(
            name=self.pv_name,
            extents=self.pv_pe_count,
            free=self.pv_pe_count - self.pv_pe_alloc_count,
            missing=self.pv_missing == "1",
            allocatable=self.pv_allocatable == "1",
        )


class Sections(msgspec.Struct):
    """The rows of a report. A report of the kind `lvs` has rows of logical volumes, or of their segments, only."""

    vg: list[GroupRow] = msgspec.field(default_factory=list)
    pv: list[PhysicalVolumeRow] = msgspec.field(default_factory=list)
    lv: list[LogicalVolumeRow] = msgspec.field(default_factory=list)
    seg: list[SegmentRow] = msgspec.field(default_factory=list)

    def report(self) -> Report:
        """Return the whole group; there must be a row of it."""
        zeroing = {row.lv_name for row in self.seg if row.zero == "1"}
        uuid = self.vg[0].vg_uuid
        return Report(
            group=self.vg[0].value(),
            volumes={row.lv_name: row.value(uuid, zeroing=row.lv_name in zeroing) for row in self.lv},
            disks=tuple(row.value() for row in self.pv),
        )

    def volumes(self) -> dict[str, LogicalVolume]:
        """Return the logical volumes by name."""
        return {row.lv_name: row.value(row.vg_uuid) for row in self.lv}

    def thin_ids(self) -> dict[str, int]:
        """Return the numbers of thin volumes in their pool."""
        return {row.lv_name: int(row.thin_id) for row in self.seg if row.thin_id}

    def extent_ranges(self) -> list[str]:
        """Return the physical extents of all segments, as /dev/disk:first-last."""
        ranges = [one for row in self.seg for one in row.seg_pe_ranges.split()]
        return [one for one in ranges if one.startswith("/")]


class _Output(msgspec.Struct):
    report: list[Sections]


def decode(text: str) -> Sections:
    """Return all rows of lvm's JSON output. Raises msgspec.DecodeError."""
    merged = Sections()
    for section in msgspec.json.decode(text, type=_Output, strict=False).report:
        merged.vg += section.vg
        merged.pv += section.pv
        merged.lv += section.lv
        merged.seg += section.seg
    return merged


def _percent(text: str) -> float | None:
    return float(text) if text else None
