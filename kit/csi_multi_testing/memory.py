"""A backend in memory with every controller feature: what the contract means, in its shortest form.

It keeps its resources in a `MemoryStorage`, which stands for the storage system: make a new backend over the
same shelf to see what a restart sees. It has bytes but no devices. Every change goes through `put` or
`drop`, every look through `fetch`, `listed` or `promised`: the calls where the kit lets it die or fail.
It has its shelf to itself, so it does not ask whose a stamp is.
"""

from __future__ import annotations

import bisect
import datetime
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from csi_multi.contract import (
    AlreadyExists,
    AttachRequest,
    Backend,
    BlockMap,
    CapacityReport,
    CapacityRequest,
    Device,
    Doc,
    ExpandRequest,
    Expansion,
    Extent,
    GroupSnapshot,
    GroupSnapshotRequest,
    HealthEntry,
    Host,
    InUse,
    InvalidArgument,
    InvalidToken,
    ModifyRequest,
    Node,
    NotFound,
    OpenRequest,
    OutOfRange,
    Page,
    PageRequest,
    ResourceExhausted,
    Schema,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Strings,
    Timeout,
    Unavailable,
    Unsupported,
    Volume,
    VolumeHealth,
    VolumeRequest,
    leaf,
    missing,
)
from csi_multi.contract import backend as b

from .fault_injection import Call
from .storage import NODE, Storage, setting

T = TypeVar("T")
GIB = 1 << 30
GRANULE = 4096
CURSOR = re.compile(r"[a-z0-9][-a-z0-9]*")


class Config(Schema, frozen=True):
    capacity: Annotated[int, Doc("bytes that can be promised", ge=0)] = 1 << 50
    nodes: Annotated[tuple[str, ...], Doc("names of the nodes beside this one")] = ()


class Parameters(Schema, frozen=True):
    tier: Annotated[Literal["hdd", "ssd"], Doc("which medium")] = "hdd"


class MutableParameters(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second", ge=1)] | None = None


@dataclass(frozen=True)
class Attachment:
    node: str  # node_id
    read_only: bool


@dataclass
class MemoryStorage:
    """The storage system: what outlives a backend object."""

    volumes: dict[str, Volume] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    groups: dict[str, GroupSnapshot] = field(default_factory=dict)
    attached: dict[str, Attachment] = field(default_factory=dict)
    iops: dict[str, int] = field(default_factory=dict)
    health: dict[str, tuple[HealthEntry, ...]] = field(default_factory=dict)
    data: dict[str, dict[int, bytes]] = field(default_factory=dict)  # blocks by offset, of volumes and snapshots
    lock: threading.RLock = field(default_factory=threading.RLock)

    def put(self, rows: dict[str, T], key: str, row: T) -> None:
        """One call to the storage that makes or changes something."""
        rows[key] = row

    def drop(self, rows: dict[str, T], key: str) -> None:
        """One call to the storage that removes something."""
        rows.pop(key, None)

    def read(self, handle: str, offset: int, length: int) -> bytes:
        """Return bytes of a volume; offset and length are whole blocks."""
        blocks = self.data.get(handle, {})
        return b"".join(blocks.get(at, bytes(GRANULE)) for at in range(offset, offset + length, GRANULE))

    def write(self, handle: str, offset: int, data: bytes) -> None:
        blocks = self.data.setdefault(handle, {})
        for at in range(0, len(data), GRANULE):
            blocks[offset + at] = data[at : at + GRANULE]

    def promised(self) -> int:
        """Return the bytes of all volumes."""
        return sum(volume.size for volume in self.volumes.values())

    def names(self) -> list[str]:
        """Everything that is there."""
        return [f"{kind} {key}" for kind in ("volumes", "snapshots", "groups", "data") for key in getattr(self, kind)]


SHELVES: dict[str, MemoryStorage] = {}  # by instance name, for servers that are built from a configuration


class MemoryBackend(
    b.ReadOnlyAttach,
    b.PublishedNodes,
    b.Expand,
    b.Clone,
    b.ListVolumes,
    b.ListSnapshots,
    b.Capacity,
    b.Modify,
    b.GroupSnapshots,
    b.ChangedBlocks,
    b.VolumeHealthLister,
):
    """Every controller feature over a Shelf."""

    contract: ClassVar[tuple[int, int]] = (1, 0)
    Config = Config
    Parameters = Parameters
    MutableParameters = MutableParameters

    def __init__(self, config: Any, setting: b.Setting, shelf: MemoryStorage | None = None) -> None:
        super().__init__(config, setting)
        self.shelf = shelf or SHELVES.setdefault(setting.instance, MemoryStorage())

    def leaf(self, name: str) -> str:
        """Return the handle for a name that was asked for."""
        return leaf(name)

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._put(request, default=GIB)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        return self._put(request, default=self.get_snapshot(request.source.handle).size)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        return self._put(request, default=self.get_volume(request.source.handle).size)

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        minimum = default if request.source else 1
        size = request.size.choose(granularity=GRANULE, minimum=minimum, default=default)
        volume = Volume(handle=self.leaf(request.name), size=size, stamp=request.stamp)
        with self.shelf.lock:
            if volume.handle in self.shelf.volumes:
                raise AlreadyExists(f"volume {request.name!r} exists")
            if size > self._free():
                raise ResourceExhausted(f"{size} bytes do not fit into {self._free()} free bytes")
            if volume.handle in self.shelf.data:  # of a process that died here
                self.shelf.drop(self.shelf.data, volume.handle)
            if volume.handle in self.shelf.iops:
                self.shelf.drop(self.shelf.iops, volume.handle)
            if request.source:  # the bytes first: a volume that is there is whole
                blocks = dict(self.shelf.data.get(_origin(request.source), {}))
                self.shelf.put(self.shelf.data, volume.handle, blocks)
            if request.mutable and request.mutable.iops is not None:
                self.shelf.put(self.shelf.iops, volume.handle, request.mutable.iops)
            self.shelf.put(self.shelf.volumes, volume.handle, volume)
        return volume

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(self.leaf(name))

    def get_volume(self, handle: str) -> Volume:
        return self._shown(fetch(self.shelf.volumes, "volume", handle))

    def _shown(self, volume: Volume) -> Volume:
        attached = self.shelf.attached.get(volume.handle)
        return replace(volume, published_nodes=(attached.node,) if attached else ())

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self.shelf.lock:
            fetch(self.shelf.volumes, "volume", handle)
            if handle in self.shelf.attached:
                raise InUse(f"volume {handle!r} is attached to node {self.shelf.attached[handle].node!r}")
            self.shelf.drop(self.shelf.data, handle)
            self.shelf.drop(self.shelf.iops, handle)
            self.shelf.drop(self.shelf.volumes, handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        with self.shelf.lock:
            return listed({handle: self._shown(one) for handle, one in self.shelf.volumes.items()}, page)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self.shelf.lock:
            volume = fetch(self.shelf.volumes, "volume", request.handle)
            size = max(volume.size, request.size.choose(granularity=GRANULE))
            if size - volume.size > self._free():
                raise ResourceExhausted(f"{size} bytes do not fit")
            if size > volume.size:
                self.shelf.put(self.shelf.volumes, request.handle, replace(volume, size=size))
        return Expansion(size=size)

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        with self.shelf.lock:
            return CapacityReport(available=self._free(), maximum=self._free(), minimum=GRANULE)

    def _free(self) -> int:
        return int(self.config.capacity) - self.shelf.promised()

    def attach(self, request: AttachRequest) -> Strings:
        """Attach. The nodes are the one that the driver runs on and those of the configuration."""
        if request.node.name not in (self.setting.node, *self.config.nodes):
            raise missing("node", request.node.name)
        wanted = Attachment(request.node.id, request.read_only)
        with self.shelf.lock:
            fetch(self.shelf.volumes, "volume", request.handle)
            found = self.shelf.attached.get(request.handle)
            if found is None:
                self.shelf.put(self.shelf.attached, request.handle, wanted)
                return {"device": request.handle}
        if found.node != wanted.node:
            raise InUse(f"volume {request.handle!r} is attached to node {found.node!r}")
        if found != wanted:
            raise AlreadyExists(f"volume {request.handle!r} is attached with read_only {found.read_only}")
        return {"device": request.handle}

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if handle not in self.shelf.attached or (node and self.shelf.attached[handle].node != node.id):
            raise NotFound(f"volume {handle!r} is not attached there")
        self.shelf.drop(self.shelf.attached, handle)

    def modify_volume(self, request: ModifyRequest) -> None:
        self.get_volume(request.handle)
        if request.mutable.iops is not None:
            self.shelf.put(self.shelf.iops, request.handle, request.mutable.iops)

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        source = self.get_volume(request.source)
        snapshot = Snapshot(
            handle=self.leaf(request.name), source=source.handle, size=source.size, created=_now(), stamp=request.stamp
        )
        with self.shelf.lock:
            if snapshot.handle in self.shelf.snapshots:
                raise AlreadyExists(f"snapshot {request.name!r} exists")
            self.shelf.put(self.shelf.data, f"@{snapshot.handle}", dict(self.shelf.data.get(source.handle, {})))
            self.shelf.put(self.shelf.snapshots, snapshot.handle, snapshot)
        return snapshot

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(self.leaf(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return fetch(self.shelf.snapshots, "snapshot", handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        if group := self.get_snapshot(handle).group:
            raise InvalidArgument(f"snapshot {handle!r} is a member of group {group!r}; delete the group")
        self.shelf.drop(self.shelf.data, f"@{handle}")
        self.shelf.drop(self.shelf.snapshots, handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        with self.shelf.lock:
            return listed({key: one for key, one in self.shelf.snapshots.items() if source in (None, one.source)}, page)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        handle, created = self.leaf(request.stamp.name), _now()
        members = []
        for number, source in enumerate(request.sources):
            stamp = replace(request.stamp, name=f"{request.stamp.name}-{number}")
            size = self.get_volume(source).size
            name = f"{handle}-{number}"
            members.append(Snapshot(handle=name, source=source, size=size, created=created, stamp=stamp, group=handle))
        group = GroupSnapshot(handle=handle, snapshots=tuple(members), created=created, stamp=request.stamp)
        with self.shelf.lock:
            if handle in self.shelf.groups:
                raise AlreadyExists(f"group snapshot {request.stamp.name!r} exists")
            self._drop_members(handle)
            for member in members:
                self.shelf.put(self.shelf.data, f"@{member.handle}", dict(self.shelf.data.get(member.source, {})))
                self.shelf.put(self.shelf.snapshots, member.handle, member)
            self.shelf.put(self.shelf.groups, handle, group)
        return group

    def _drop_members(self, group: str) -> None:
        """Drop what a process cut that died before its group was complete."""
        for key in [key for key in self.shelf.data if key.startswith(f"@{group}-")]:
            found = self.shelf.snapshots.get(key[1:])
            if found is None or found.group == group:
                self.shelf.drop(self.shelf.data, key)
                self.shelf.drop(self.shelf.snapshots, key[1:])

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return self.get_group_snapshot(self.leaf(name))

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return fetch(self.shelf.groups, "group snapshot", handle)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        group = self.get_group_snapshot(handle)
        for member in group.snapshots:
            self.shelf.drop(self.shelf.data, f"@{member.handle}")
            self.shelf.drop(self.shelf.snapshots, member.handle)
        self.shelf.drop(self.shelf.groups, handle)

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return self._blocks(self.get_snapshot(handle), offset, {})

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        self.get_snapshot(base)
        return self._blocks(self.get_snapshot(target), offset, self.shelf.data.get(f"@{base}", {}))

    def _blocks(self, snapshot: Snapshot, offset: int, base: Mapping[int, bytes]) -> BlockMap:
        """Return the blocks that differ from the base, and the first ones: more than needed may be told."""
        if offset > snapshot.size:
            raise OutOfRange(f"offset {offset} is beyond the end at {snapshot.size}")
        blocks = self.shelf.data.get(f"@{snapshot.handle}", {})
        told = set(range(0, min(snapshot.size, 4 * GRANULE), GRANULE))
        told |= {at for at in blocks.keys() | base.keys() if blocks.get(at) != base.get(at)}
        extents = (Extent(offset=at, length=GRANULE) for at in sorted(told) if at + GRANULE > offset)
        return BlockMap(size=snapshot.size, extents=extents, block_size=GRANULE)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return self.shelf.health.get(handle, ())

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        with self.shelf.lock:
            rows = {key: VolumeHealth(handle=key, entries=entries) for key, entries in self.shelf.health.items()}
        return listed(rows, page)

    def open_device(self, request: OpenRequest) -> Device:
        _no_devices()

    def find_device(self, handle: str) -> Device | None:
        self.get_volume(handle)
        return None

    def close_device(self, handle: str) -> None:
        """Nothing is ever open."""


def _no_devices() -> NoReturn:
    raise Unsupported("volumes in memory have no device")


def _origin(source: Source) -> str:
    return source.handle if source.kind is SourceKind.VOLUME else f"@{source.handle}"


def fetch(rows: dict[str, T], kind: str, handle: str) -> T:
    if handle not in rows:
        raise missing(kind, handle)
    return rows[handle]


def listed(rows: dict[str, T], page: PageRequest) -> Page[T]:
    if page.cursor and not CURSOR.fullmatch(page.cursor):
        raise InvalidToken(f"cursor {page.cursor!r} is not one of ours; list again from the start")
    names = sorted(rows)
    start = bisect.bisect_right(names, page.cursor) if page.cursor else 0
    chosen = names[start : start + page.limit] if page.limit else names[start:]
    more = start + len(chosen) < len(names)
    return Page(items=tuple(rows[name] for name in chosen), cursor=chosen[-1] if more and chosen else "")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _unreachable() -> Exception:
    return Unavailable("the shelf cannot be reached")


def _silent() -> Exception:
    return Timeout("the shelf did not answer in time")


def storage(kind: type[MemoryBackend] = MemoryBackend, capacity: int = 1 << 50, **given: Any) -> Storage:
    """Return everything the kit can be told about a storage in memory; `given` replaces parts of it."""
    shelf = MemoryStorage()
    names = (NODE, "node-2", "node-3")
    config = Config(nodes=names, capacity=capacity)

    def connect(host: Host) -> Backend:
        return kind(config, setting(host), shelf)

    this = sys.modules[__name__]
    calls = ((shelf, "put"), (shelf, "drop"), (shelf, "promised"), (this, "fetch"), (this, "listed"))
    known: dict[str, Any] = {
        "connect": connect,
        "other_parameters": {"tier": "ssd"},
        "mutable": {"iops": "100"},
        "other_mutable": {"iops": "200"},
        "too_large": capacity * 2,
        "resources": shelf.names,
        "nodes": tuple(Node(name=name, id=name) for name in names),
        "calls": tuple(Call(owner=owner, name=name, error=_unreachable, timeout=_silent) for owner, name in calls),
        "read": shelf.read,
        "write": shelf.write,
    }
    return Storage(**known | given)
