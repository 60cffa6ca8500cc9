"""What rbd and ceph say, as typed rows. Sizes are bytes, times UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Told = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How an image is to be laid out. Empty: the cluster's default."""

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
    trashed: bool = False  # whether the parent is in the trash


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    name: str
    size: int
    id: str = ""
    features: frozenset[str] = frozenset()
    snapshots: int = 0  # those out of sight included, which clones still need
    parent: Parent | None = None
    data_pool: str = ""
    object_size: int = 0
    stripe_unit: int = 0  # 0: no striping of its own
    stripe_count: int = 0
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    @classmethod
    def new(cls, name: str, size: int) -> Image:
        """An image that was made just now."""
        return cls(name=name, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    name: str
    id: str
    size: int
    parent: str = ""  # the parent's name, "" when it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A snapshot as Ceph has it."""

    id: int
    name: str
    namespace: str  # user, trash (a clone needs it), group, mirror
    size: int
    created: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Trashed:
    id: str
    name: str  # it had


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Of a pool. `max_avail` is what the fullest of its OSDs leaves, replication already taken off."""

    max_avail: int
    stored: int
    quota_bytes: int = 0  # 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Of a cluster."""

    fsid: str
    health: str  # HEALTH_OK, HEALTH_WARN, HEALTH_ERR
    checks: Mapping[str, str] = field(default_factory=dict)  # name -> summary; muted ones are left out


def image(told: Told) -> Image:
    return Image(
        name=told["name"],
        id=told["id"],
        size=told["size"],
        features=frozenset(told["features"]),
        snapshots=told.get("snapshot_count", 0),
        parent=parent(told["parent"]) if "parent" in told else None,
        data_pool=told.get("data_pool", ""),
        object_size=told["object_size"],
        stripe_unit=told.get("stripe_unit", 0),
        stripe_count=told.get("stripe_count", 0),
        created=when(told.get("create_timestamp", "")),
    )


def parent(told: Told) -> Parent:
    return Parent(
        pool=told["pool"],
        namespace=told.get("pool_namespace", ""),
        image=told["image"],
        id=told.get("id", ""),
        snapshot=told["snapshot"],
        trashed=bool(told.get("trash", False)),
    )


def listed(told: list[Told]) -> list[Listed]:
    """Read `ls -l`, which has the snapshots between the images."""
    return [
        Listed(
            name=one["image"],
            id=one["id"],
            size=one["size"],
            parent=one["parent"]["image"] if "parent" in one else "",
        )
        for one in told
        if not one.get("snapshot")
    ]


def listed_cuts(told: list[Told]) -> list[tuple[str, str]]:
    """Read `ls -l`: (image, snapshot) of every snapshot that is in sight."""
    return [(one["image"], one["snapshot"]) for one in told if one.get("snapshot")]


def cut(told: Told) -> Cut:
    return Cut(
        id=told["id"],
        name=told["name"],
        namespace=told.get("namespace", {}).get("type", "user"),
        size=told["size"],
        created=when(told.get("timestamp", "")),
    )


def trashed(told: Told) -> Trashed:
    return Trashed(id=told["id"], name=told["name"])


def room(told: Told, pool: str) -> Room | None:
    stats = next((one["stats"] for one in told["pools"] if one["name"] == pool), None)
    if stats is None:
        return None
    return Room(max_avail=stats["max_avail"], stored=stats["stored"], quota_bytes=stats.get("quota_bytes", 0))


def full(told: list[Told], pool: str) -> str:
    """Return in what way the pool is full, "" when it is not."""
    flags: list[str] = next((one["flags_names"].split(",") for one in told if one["pool_name"] == pool), [])
    if "full" not in flags:
        return ""
    return f"pool {pool!r} has reached its quota" if "full_quota" in flags else f"pool {pool!r} is full"


def status(told: Told) -> Status:
    health = told["health"]
    checks = {name: one["summary"]["message"] for name, one in health.get("checks", {}).items() if not one.get("muted")}
    return Status(fsid=told["fsid"], health=health["status"], checks=checks)


def when(text: str) -> datetime:
    """Read a time as rbd tells it, for example `Sat Nov 21 23:22:38 2026`: shell.py has made it UTC."""
    return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC) if text else datetime.now(UTC)
