"""A backend in memory with every controller feature: the shortest correct implementation of the contract.

It keeps its resources in a `MemoryStorage` (memory_storage.py), which stands for the storage system. A new backend over
the same storage sees what a process sees after a restart. Volumes have data but no devices. Every change goes through
`put` or `drop`, every read through `fetch`, `listed` or `total_size`: at these calls the kit injects faults. No one
else uses its storage, so it does not compare the owners of stamps.
"""

from __future__ import annotations

import bisect
import datetime
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from csi_multi.contract import (
    NO_SECRETS,
    RESET,
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
    Reset,
    ResourceExhausted,
    Schema,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Strings,
    Timeout,
    Unsupported,
    Volume,
    VolumeHealth,
    VolumeRequest,
    ids,
    leaf,
    missing,
)
from csi_multi.contract import backend as b

from .fault_injection import Call
from .memory_storage import DAMAGED, GRANULE, Attachment, MemoryStorage, T, unreachable
from .storage import NODE, Storage, setting

__all__ = ["DAMAGED", "GRANULE", "Attachment", "MemoryBackend", "MemoryStorage", "T", "storage"]

GIB = 1 << 30
CURSOR = re.compile(r"[a-z0-9][-a-z0-9]*")


class MemoryConfig(Schema, frozen=True):
    capacity: Annotated[int, Doc("total size of all volumes", ge=0)] = 1 << 50
    nodes: Annotated[tuple[str, ...], Doc("names of the nodes beside this one")] = ()


class Parameters(Schema, frozen=True):
    tier: Annotated[Literal["hdd", "ssd"], Doc("which medium")] = "hdd"


class MutableParameters(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second", ge=1)] | Reset | None = None


STORAGES: dict[str, MemoryStorage] = {}  # by instance name, for servers that are built from a configuration


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
    """Every controller feature over a MemoryStorage."""

    contract: ClassVar[tuple[int, int]] = (1, 1)
    Config = MemoryConfig
    Parameters = Parameters
    MutableParameters = MutableParameters

    def __init__(self, config: Any, setting: b.Setting, storage: MemoryStorage | None = None) -> None:
        super().__init__(config, setting)
        self._storage = storage or STORAGES.setdefault(setting.instance, MemoryStorage())

    @property
    def storage(self) -> MemoryStorage:
        """The storage system. Raises Unavailable while it is away."""
        if self._storage.is_away:
            raise unreachable()
        return self._storage

    @storage.setter
    def storage(self, storage: MemoryStorage) -> None:
        self._storage = storage

    def leaf(self, name: str) -> str:
        """Return the handle for a requested name."""
        return leaf(name)

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._put(request, default=GIB)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        with self.storage.lock:  # another process may delete the source
            self._drop_incomplete(self.leaf(request.name))
            return self._put(request, default=self.get_snapshot(request.source.handle).size)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        assert request.source
        with self.storage.lock:
            self._drop_incomplete(self.leaf(request.name))
            return self._put(request, default=self.get_volume(request.source.handle).size)

    def _drop_incomplete(self, handle: str) -> None:
        """Drop what a process left that died: after a final error, as for a source that is gone, nobody asks again."""
        if handle in self.storage.volumes:
            return
        if handle in self.storage.data:
            self.storage.drop(self.storage.data, handle)
        if handle in self.storage.iops:
            self.storage.drop(self.storage.iops, handle)

    def _put(self, request: VolumeRequest, default: int) -> Volume:
        minimum = default if request.source else 1
        size = request.size.choose(granularity=GRANULE, minimum=minimum, default=default)
        volume = Volume(handle=self.leaf(request.name), size=size, stamp=request.stamp)
        with self.storage.lock:
            if volume.handle in self.storage.volumes:
                raise AlreadyExists(f"volume {request.name!r} exists")
            self._drop_incomplete(volume.handle)
            if size > self._free():
                raise ResourceExhausted(f"{size} bytes requested, {self._free()} bytes free")
            if request.source:  # the data first: a volume that can be found is complete
                blocks = dict(self.storage.data.get(_data_key(request.source), {}))
                self.storage.put(self.storage.data, volume.handle, blocks)
            if request.mutable and request.mutable.iops not in (None, RESET):
                self.storage.put(self.storage.iops, volume.handle, request.mutable.iops)
            self._rename_source(volume.handle)
            self.storage.put(self.storage.volumes, volume.handle, volume)
        return volume

    def _rename_source(self, handle: str) -> None:
        """Snapshots of an earlier volume of this handle are not the new one's."""
        earlier = ids.earlier(handle, _now().isoformat())
        for key, one in self.storage.snapshots.items():
            if one.source == handle:
                self.storage.snapshots[key] = replace(one, source=earlier)

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(self.leaf(name))

    def get_volume(self, handle: str) -> Volume:
        return self._shown(fetch(self.storage.volumes, "volume", handle))

    def _shown(self, volume: Volume) -> Volume:
        attached = self.storage.attached.get(volume.handle)
        return replace(volume, published_nodes=(attached.node,) if attached else ())

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self.storage.lock:
            fetch(self.storage.volumes, "volume", handle)
            if handle in self.storage.attached:
                raise InUse(f"volume {handle!r} is attached to node {self.storage.attached[handle].node!r}")
            self.storage.drop(self.storage.data, handle)
            self.storage.drop(self.storage.iops, handle)
            self.storage.drop(self.storage.volumes, handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        with self.storage.lock:
            return listed({handle: self._shown(one) for handle, one in self.storage.volumes.items()}, page)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self.storage.lock:
            volume = fetch(self.storage.volumes, "volume", request.handle)
            size = max(volume.size, request.size.choose(granularity=GRANULE))
            if size - volume.size > self._free():
                raise ResourceExhausted(f"{size} bytes requested, {self._free()} bytes free beside the volume")
            if size > volume.size:
                self.storage.put(self.storage.volumes, request.handle, replace(volume, size=size))
        return Expansion(size=size)

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        with self.storage.lock:
            return CapacityReport(available=self._free(), maximum=self._free(), minimum=GRANULE)

    def _free(self) -> int:
        return max(0, int(self.config.capacity) - self.storage.total_size())

    def attach(self, request: AttachRequest) -> Strings:
        """Attach to the driver's own node or to a node of the configuration."""
        if request.node.name not in (self.setting.node, *self.config.nodes):
            raise missing("node", request.node.name)
        wanted = Attachment(request.node.id, request.read_only)
        with self.storage.lock:
            fetch(self.storage.volumes, "volume", request.handle)
            found = self.storage.attached.get(request.handle)
            if found is None:
                self.storage.put(self.storage.attached, request.handle, wanted)
                return {"device": request.handle}
        if found.node != wanted.node:
            raise InUse(f"volume {request.handle!r} is attached to node {found.node!r}")
        if found != wanted:
            raise AlreadyExists(f"volume {request.handle!r} is attached with read_only {found.read_only}")
        return {"device": request.handle}

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if handle not in self.storage.attached or (node and self.storage.attached[handle].node != node.id):
            raise NotFound(f"volume {handle!r} is not attached to this node")
        self.storage.drop(self.storage.attached, handle)

    def modify_volume(self, request: ModifyRequest) -> None:
        if reason := self.unmodifiable(request.handle, request.mutable):
            raise InvalidArgument(reason)
        if request.mutable.iops == RESET:
            self.storage.drop(self.storage.iops, request.handle)
        elif request.mutable.iops is not None:
            self.storage.put(self.storage.iops, request.handle, request.mutable.iops)

    def unmodifiable(self, handle: str, mutable: Any) -> str:
        most = self.get_volume(handle).size
        wanted = mutable.iops if isinstance(mutable.iops, int) else 0
        return f"'iops' {wanted} is more than one for each byte; request at most {most}" if wanted > most else ""

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        handle = self.leaf(request.name)
        with self.storage.lock:
            if handle in self.storage.snapshots:
                raise AlreadyExists(f"snapshot {request.name!r} exists")
            if f"@{handle}" in self.storage.data:
                self.storage.drop(self.storage.data, f"@{handle}")
            source = self.get_volume(request.source)
            snapshot = Snapshot(
                handle=handle,
                source=source.handle,
                size=source.size,
                created=_now(),
                stamp=request.stamp,
            )
            self.storage.put(self.storage.data, f"@{snapshot.handle}", dict(self.storage.data.get(source.handle, {})))
            self.storage.put(self.storage.snapshots, snapshot.handle, snapshot)
        return snapshot

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(self.leaf(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return fetch(self.storage.snapshots, "snapshot", handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        with self.storage.lock:
            if group := self.get_snapshot(handle).group:
                raise InvalidArgument(f"snapshot {handle!r} is a member of group {group!r}; delete the group")
            self.storage.drop(self.storage.data, f"@{handle}")
            self.storage.drop(self.storage.snapshots, handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        with self.storage.lock:
            return listed(
                {key: one for key, one in self.storage.snapshots.items() if source in (None, one.source)}, page
            )

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        handle, created = self.leaf(request.stamp.name), _now()
        with self.storage.lock:
            if handle in self.storage.groups:
                raise AlreadyExists(f"group snapshot {request.stamp.name!r} exists")
            self._drop_members(handle)
            members = []
            for number, source in enumerate(request.sources):
                stamp = replace(request.stamp, name=f"{request.stamp.name}-{number}")
                size = self.get_volume(source).size
                name = f"{handle}-{number}"
                members.append(
                    Snapshot(handle=name, source=source, size=size, created=created, stamp=stamp, group=handle)
                )
            group = GroupSnapshot(handle=handle, snapshots=tuple(members), created=created, stamp=request.stamp)
            for member in members:
                self.storage.put(self.storage.data, f"@{member.handle}", dict(self.storage.data.get(member.source, {})))
                self.storage.put(self.storage.snapshots, member.handle, member)
            self.storage.put(self.storage.groups, handle, group)
        return group

    def _drop_members(self, group: str) -> None:
        """Drop the members of a process that died before the group was complete."""
        for key in [key for key in self.storage.data if key.startswith(f"@{group}-")]:
            found = self.storage.snapshots.get(key[1:])
            if found is None or found.group == group:
                self.storage.drop(self.storage.data, key)
                self.storage.drop(self.storage.snapshots, key[1:])

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return self.get_group_snapshot(self.leaf(name))

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return fetch(self.storage.groups, "group snapshot", handle)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        group = self.get_group_snapshot(handle)
        for member in group.snapshots:
            self.storage.drop(self.storage.data, f"@{member.handle}")
            self.storage.drop(self.storage.snapshots, member.handle)
        self.storage.drop(self.storage.groups, handle)

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return self._blocks(self.get_snapshot(handle), offset, {})

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        self.get_snapshot(base)
        return self._blocks(self.get_snapshot(target), offset, self.storage.data.get(f"@{base}", {}))

    def _blocks(self, snapshot: Snapshot, offset: int, base: Mapping[int, bytes]) -> BlockMap:
        """Return the blocks that differ from the base, and the first ones: the contract allows more than necessary."""
        if offset > snapshot.size:
            raise OutOfRange(f"offset {offset} is beyond the end at {snapshot.size}")
        blocks = self.storage.data.get(f"@{snapshot.handle}", {})
        offsets = set(range(0, min(snapshot.size, 4 * GRANULE), GRANULE))
        offsets |= {at for at in blocks.keys() | base.keys() if blocks.get(at) != base.get(at)}
        extents = (Extent(offset=at, length=GRANULE) for at in sorted(offsets) if at + GRANULE > offset)
        return BlockMap(size=snapshot.size, extents=extents, block_size=GRANULE)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return self.storage.health.get(handle, ())

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        with self.storage.lock:
            rows = {key: VolumeHealth(handle=key, entries=entries) for key, entries in self.storage.health.items()}
        return listed(rows, page)

    def open_device(self, request: OpenRequest) -> Device:
        _no_devices()

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        self.get_volume(handle)
        return None

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """Do nothing: no device is ever open."""

    def check(self) -> None:
        self.storage.total_size()


def _no_devices() -> NoReturn:
    raise Unsupported("volumes in memory have no device")


def _data_key(source: Source) -> str:
    return source.handle if source.kind is SourceKind.VOLUME else f"@{source.handle}"


def fetch(rows: dict[str, T], kind: str, handle: str) -> T:
    if handle not in rows:
        raise missing(kind, handle)
    return rows[handle]


def listed(rows: dict[str, T], page: PageRequest) -> Page[T]:
    if page.cursor and not CURSOR.fullmatch(page.cursor):
        raise InvalidToken(f"cursor {page.cursor!r} was not returned by this backend; list again from the start")
    names = sorted(rows)
    start = bisect.bisect_right(names, page.cursor) if page.cursor else 0
    chosen = names[start : start + page.limit] if page.limit else names[start:]
    more = start + len(chosen) < len(names)
    return Page(items=tuple(rows[name] for name in chosen), cursor=chosen[-1] if more and chosen else "")


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _silent() -> Exception:
    return Timeout("the storage did not answer in time")


def storage(
    kind: type[MemoryBackend] = MemoryBackend,
    capacity: int = 1 << 50,
    rows: type[MemoryStorage] = MemoryStorage,
    **given: Any,
) -> Storage:
    """Return the Storage of a new MemoryStorage, with all fields; `given` replaces some of them."""
    storage = rows()
    names = (NODE, "node-2", "node-3")
    config = MemoryConfig(nodes=names, capacity=capacity)

    def connect(host: Host) -> Backend:
        return kind(config, setting(host), storage)

    this = sys.modules[__name__]
    calls = ((storage, "put"), (storage, "drop"), (storage, "total_size"), (this, "fetch"), (this, "listed"))
    known: dict[str, Any] = {
        "connect": connect,
        "other_parameters": {"tier": "ssd"},
        "mutable": {"iops": "100"},
        "other_mutable": {"iops": "200"},
        "too_large": capacity * 2,
        "large": 5 * GIB if capacity > 100 * GIB else None,
        "resources": storage.names,
        "nodes": tuple(Node(name=name, id=name) for name in names),
        "calls": tuple(Call(owner=owner, name=name, error=unreachable, timeout=_silent) for owner, name in calls),
        "read": storage.read,
        "write": storage.write,
        "away": storage.away,
        "occupy": storage.occupy,
        "damage": storage.damage,
        "undamage": storage.undamage,
        "effect": storage.iops.get,
    }
    return Storage(**known | given)
