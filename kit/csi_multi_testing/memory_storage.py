"""The storage system of the backend in memory, with what happens to one: it is away, and a volume is damaged."""

from __future__ import annotations

import bisect
import datetime
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from csi_multi.contract import (
    GroupSnapshot,
    Health,
    HealthEntry,
    InvalidToken,
    Page,
    PageRequest,
    Snapshot,
    Source,
    SourceKind,
    Unavailable,
    Volume,
    missing,
)

T = TypeVar("T")
GRANULE = 4096
CURSOR = re.compile(r"[a-z0-9][-a-z0-9]*")
DAMAGED = HealthEntry(status=Health.DEGRADED, reason="Damaged", message="damaged by hand; repair it by hand")
LOST = HealthEntry(status=Health.DATA_LOSS, reason="Lost", message="lost by hand; bring it back by hand")


@dataclass(frozen=True)
class Attachment:
    node: str  # node_id
    read_only: bool

    @property
    def name(self) -> str:
        """The node's name; the rest of its id changes with the instances of the driver."""
        return self.node.partition(";")[0]


@dataclass
class MemoryStorage:
    """The storage system: what remains when a backend object is gone."""

    volumes: dict[str, Volume] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    groups: dict[str, GroupSnapshot] = field(default_factory=dict)
    attached: dict[str, Attachment] = field(default_factory=dict)
    iops: dict[str, int] = field(default_factory=dict)
    health: dict[str, tuple[HealthEntry, ...]] = field(default_factory=dict)
    data: dict[str, dict[int, bytes]] = field(default_factory=dict)  # blocks by offset, of volumes and snapshots
    others: int = 0  # bytes that somebody else takes
    is_away: bool = False  # whether no backend can reach it
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, rows: dict[str, T], key: str, row: T) -> None:
        """One call to the storage that creates or changes something."""
        rows[key] = row

    def drop(self, rows: dict[str, T], key: str) -> None:
        """One call to the storage that removes something."""
        rows.pop(key, None)

    def fetch(self, rows: dict[str, T], kind: str, handle: str) -> T:
        """One call to the storage that reads something. Raises NotFound."""
        if handle not in rows:
            raise missing(kind, handle)
        return rows[handle]

    def listed(self, rows: dict[str, T], page: PageRequest) -> Page[T]:
        """One call to the storage that lists something. Raises InvalidToken."""
        if page.cursor and not CURSOR.fullmatch(page.cursor):
            raise InvalidToken(f"cursor {page.cursor!r} was not returned by this backend; list again from the start")
        names = sorted(rows)
        start = bisect.bisect_right(names, page.cursor) if page.cursor else 0
        chosen = names[start : start + page.limit] if page.limit else names[start:]
        more = start + len(chosen) < len(names)
        return Page(items=tuple(rows[name] for name in chosen), cursor=chosen[-1] if more and chosen else "")

    def read(self, handle: str, offset: int, length: int) -> bytes:
        """Return bytes of a volume; offset and length are whole blocks."""
        blocks = self.data.get(handle, {})
        return b"".join(blocks.get(at, bytes(GRANULE)) for at in range(offset, offset + length, GRANULE))

    def write(self, handle: str, offset: int, data: bytes) -> None:
        with self.lock:  # not while a group is cut
            blocks = self.data.setdefault(handle, {})
            for at in range(0, len(data), GRANULE):
                blocks[offset + at] = data[at : at + GRANULE]

    def total_size(self) -> int:
        """Return the total size of all volumes, of what snapshots hold, and of what others have."""
        held = sum(len(blocks) for key, blocks in self.data.items() if key.startswith("@"))
        return sum(volume.size for volume in self.volumes.values()) + held * GRANULE + self.others

    @contextmanager
    def occupy(self, size: int) -> Iterator[None]:
        """Let somebody else take this many bytes in the block."""
        self.others += size
        try:
            yield
        finally:
            self.others -= size

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let no backend reach the storage in the block."""
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False

    def damage(self, handle: str, problem: HealthEntry = DAMAGED) -> None:
        """Let the health of a volume show a problem, beside others that it has."""
        self.health[handle] = (*self.health.get(handle, ()), problem)

    def undamage(self, handle: str, problem: HealthEntry = DAMAGED) -> None:
        left = tuple(one for one in self.health.pop(handle) if one != problem)
        if left:
            self.health[handle] = left

    def lose(self, handle: str) -> None:
        """Let the health of a volume show another problem."""
        self.damage(handle, LOST)

    def bring_back(self, handle: str) -> None:
        """Repair that."""
        self.undamage(handle, LOST)

    def names(self) -> list[str]:
        """Return the names of everything on the storage."""
        return [f"{kind} {key}" for kind in ("volumes", "snapshots", "groups", "data") for key in getattr(self, kind)]


def unreachable() -> Exception:
    return Unavailable("the storage cannot be reached")


def data_key(source: Source) -> str:
    """Return under which key the data of a volume or snapshot is kept."""
    return source.handle if source.kind is SourceKind.VOLUME else f"@{source.handle}"


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
