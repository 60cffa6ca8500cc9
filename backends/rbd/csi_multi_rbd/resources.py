"""Images, snapshots, pools and mappings as typed values: from the JSON of rbd and ceph, and from sysfs.

Sizes are bytes, times UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from csi_multi.contract import Strings

Json = Mapping[str, Any]
MapKind = Literal["krbd", "nbd"]  # mapped by the kernel or by rbd-nbd


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayout:
    """The layout of an image that is to be created. Empty: the cluster's default."""

    features: tuple[str, ...] = ()
    data_pool: str = ""
    object_size: int = 0
    stripe_unit: int = 0
    stripe_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    pool: str
    namespace: str
    image: str
    id: str
    snapshot: str
    in_trash: bool = False  # whether the parent is in the trash


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    name: str
    size: int
    id: str = ""
    features: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()  # "object map invalid", "fast diff invalid"
    snapshots: int = 0  # including those in the trash namespace, which clones still need
    parent: Parent | None = None
    data_pool: str = ""
    object_size: int = 0
    stripe_unit: int = 0  # 0: not striped
    stripe_count: int = 0
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def new(cls, name: str, size: int) -> Image:
        """Return an image that was created just now."""
        return cls(name=name, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedImage:
    """An image as `rbd ls --long` lists it."""

    name: str
    id: str
    size: int
    parent: str = ""  # name of the parent; "": none


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSnapshot:
    """A Ceph snapshot as `rbd ls --long` lists it."""

    image: str
    name: str
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSnapshot:
    """A Ceph snapshot of an image (a CSI snapshot is an image of its own)."""

    id: int
    name: str
    namespace: str  # user, trash (removed, but a clone needs it), group, mirror
    size: int
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrashEntry:
    id: str
    name: str  # of the image before it was moved to the trash


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """Usage of a pool. `max_avail` is the free space after replication, limited by its fullest OSD."""

    max_avail: int
    stored: int
    quota_bytes: int = 0  # 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Health of a cluster."""

    fsid: str
    health: str  # HEALTH_OK, HEALTH_WARN, HEALTH_ERR
    checks: Mapping[str, str] = field(default_factory=dict)  # name -> summary, without muted checks


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedImage:
    """An image that is mapped on this node, as sysfs shows it."""

    kind: MapKind
    disk: str  # its name in /sys/block
    number: str  # major:minor
    image_id: str
    proof: Strings  # sysfs attributes that identify the device, see model.Device
    client: str = ""  # address by which the cluster knows this mapping; "": not known
    exclusive: bool = False
    served: bool = True  # False: its rbd-nbd process has died


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolListing:
    """What `rbd ls --long` lists."""

    images: list[ListedImage]
    snapshots: list[ListedSnapshot]


class DiffRow(msgspec.Struct, frozen=True):
    """A range of bytes in the output of `rbd diff`."""

    offset: int
    length: int
    exists: str  # true, or false where there are zeros


def image(data: Json) -> Image:
    return Image(
        name=data["name"],
        id=data["id"],
        size=data["size"],
        features=frozenset(data["features"]),
        flags=frozenset(data.get("flags", ())),
        snapshots=data.get("snapshot_count", 0),
        parent=parent(data["parent"]) if "parent" in data else None,
        data_pool=data.get("data_pool", ""),
        object_size=data["object_size"],
        stripe_unit=data.get("stripe_unit", 0),
        stripe_count=data.get("stripe_count", 0),
        created=timestamp(data.get("create_timestamp", "")),
    )


def parent(data: Json) -> Parent:
    return Parent(
        pool=data["pool"],
        namespace=data.get("pool_namespace", ""),
        image=data["image"],
        id=data.get("id", ""),
        snapshot=data["snapshot"],
        in_trash=bool(data.get("trash", False)),
    )


def pool_listing(data: list[Json]) -> PoolListing:
    return PoolListing(images=listed(data), snapshots=listed_snapshots(data))


def listed(data: list[Json]) -> list[ListedImage]:
    """Return the images in the output of `rbd ls --long`, which lists snapshots among them."""
    return [
        ListedImage(
            name=one["image"],
            id=one["id"],
            size=one["size"],
            parent=one["parent"]["image"] if "parent" in one else "",
        )
        for one in data
        if not one.get("snapshot")
    ]


def listed_snapshots(data: list[Json]) -> list[ListedSnapshot]:
    """Return every user snapshot in the output of `rbd ls --long`."""
    return [
        ListedSnapshot(image=one["image"], name=one["snapshot"], id=one["snapshot_id"])
        for one in data
        if one.get("snapshot")
    ]


def snapshot(data: Json) -> ImageSnapshot:
    return ImageSnapshot(
        id=data["id"],
        name=data["name"],
        namespace=data.get("namespace", {}).get("type", "user"),
        size=data["size"],
        created=timestamp(data.get("timestamp", "")),
    )


def trash_entry(data: Json) -> TrashEntry:
    return TrashEntry(id=data["id"], name=data["name"])


def pool_usages(data: Json) -> dict[str, PoolUsage]:
    """Return the usage of every pool by its name."""
    return {one["name"]: _pool_usage(one["stats"]) for one in data["pools"]}


def _pool_usage(stats: Json) -> PoolUsage:
    return PoolUsage(max_avail=stats["max_avail"], stored=stats["stored"], quota_bytes=stats.get("quota_bytes", 0))


def full_reason(data: list[Json], pool: str) -> str:
    """Return why the pool is full, "" when it is not."""
    flags: list[str] = next((one["flags_names"].split(",") for one in data if one["pool_name"] == pool), [])
    if "full" not in flags:
        return ""
    return f"pool {pool!r} has reached its quota" if "full_quota" in flags else f"pool {pool!r} is full"


def status(data: Json) -> ClusterStatus:
    health = data["health"]
    checks = {name: one["summary"]["message"] for name, one in health.get("checks", {}).items() if not one.get("muted")}
    return ClusterStatus(fsid=data["fsid"], health=health["status"], checks=checks)


def timestamp(text: str) -> datetime:
    """Parse a time as rbd prints it, for example `Sat Nov 21 23:22:38 2026`; command.py makes rbd print UTC."""
    return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC) if text else datetime.now(UTC)
