"""A backend in memory with every controller feature: the shortest correct implementation of the contract.

It keeps its resources in a `MemoryStorage` (memory_storage.py), which stands for the storage system. A new backend over
the same storage sees what a process sees after a restart. Volumes have data but no devices. Every change goes through
its `put` or `drop`, every read through its `fetch`, `listed` or `total_size`: at these calls the kit injects faults. No
one else uses its storage, so it does not compare the owners of stamps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NoReturn

from csi_multi.contract import (
    NO_SECRETS,
    RESET,
    AlreadyExists,
    AttachRequest,
    Backend,
    CapacityReport,
    CapacityRequest,
    Device,
    Doc,
    ExpandRequest,
    Expansion,
    HealthEntry,
    Host,
    InUse,
    InvalidArgument,
    ModifyRequest,
    Node,
    NotFound,
    OpenRequest,
    Page,
    PageRequest,
    Reset,
    ResourceExhausted,
    Schema,
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
from .memory_snapshots import MemorySnapshots
from .memory_storage import DAMAGED, GRANULE, Attachment, MemoryStorage, T, data_key, now, unreachable
from .storage import NODE, Storage, setting

__all__ = ["DAMAGED", "GRANULE", "Attachment", "MemoryBackend", "MemoryStorage", "T", "storage"]

GIB = 1 << 30


class MemoryConfig(Schema, frozen=True):
    capacity: Annotated[int, Doc("total size of all volumes", ge=0)] = 1 << 50
    nodes: Annotated[tuple[str, ...], Doc("names of the nodes beside this one")] = ()


class Parameters(Schema, frozen=True):
    tier: Annotated[Literal["hdd", "ssd"], Doc("which medium")] = "hdd"


class MutableParameters(Schema, frozen=True):
    iops: Annotated[int, Doc("operations per second", ge=1)] | Reset | None = None


STORAGES: dict[str, MemoryStorage] = {}  # by instance name, for servers that are built from a configuration


class MemoryBackend(
    MemorySnapshots,
    b.ReadOnlyAttach,
    b.PublishedNodes,
    b.Expand,
    b.Clone,
    b.ListVolumes,
    b.Capacity,
    b.Modify,
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
                blocks = dict(self.storage.data.get(data_key(request.source), {}))
                self.storage.put(self.storage.data, volume.handle, blocks)
            if request.mutable and request.mutable.iops not in (None, RESET):
                self.storage.put(self.storage.iops, volume.handle, request.mutable.iops)
            self._rename_source(volume.handle)
            self.storage.put(self.storage.volumes, volume.handle, volume)
        return volume

    def _rename_source(self, handle: str) -> None:
        """Snapshots of an earlier volume of this handle are not the new one's."""
        earlier = ids.earlier(handle, now().isoformat())
        for key, one in self.storage.snapshots.items():
            if one.source == handle:
                self.storage.snapshots[key] = replace(one, source=earlier)

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(self.leaf(name))

    def get_volume(self, handle: str) -> Volume:
        return self._shown(self.storage.fetch(self.storage.volumes, "volume", handle))

    def _shown(self, volume: Volume) -> Volume:
        attached = self.storage.attached.get(volume.handle)
        return replace(volume, published_nodes=(attached.node,) if attached else ())

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self.storage.lock:
            self.storage.fetch(self.storage.volumes, "volume", handle)
            if handle in self.storage.attached:
                raise InUse(f"volume {handle!r} is attached to node {self.storage.attached[handle].node!r}")
            self.storage.drop(self.storage.data, handle)
            self.storage.drop(self.storage.iops, handle)
            self.storage.drop(self.storage.volumes, handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        with self.storage.lock:
            return self.storage.listed({handle: self._shown(one) for handle, one in self.storage.volumes.items()}, page)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        with self.storage.lock:
            volume = self.storage.fetch(self.storage.volumes, "volume", request.handle)
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
            self.storage.fetch(self.storage.volumes, "volume", request.handle)
            found = self.storage.attached.get(request.handle)
            if found is None:
                self.storage.put(self.storage.attached, request.handle, wanted)
                return {"device": request.handle}
        if found.name != wanted.name:
            raise InUse(f"volume {request.handle!r} is attached to node {found.node!r}")
        if found.read_only != wanted.read_only:
            raise AlreadyExists(f"volume {request.handle!r} is attached with read_only {found.read_only}")
        if found != wanted:
            self.storage.put(self.storage.attached, request.handle, wanted)
        return {"device": request.handle}

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        if handle not in self.storage.attached or (node and self.storage.attached[handle].name != node.name):
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

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        self.get_volume(handle)
        return self.storage.health.get(handle, ())

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        with self.storage.lock:
            rows = {key: VolumeHealth(handle=key, entries=entries) for key, entries in self.storage.health.items()}
        return self.storage.listed(rows, page)

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

    calls = tuple((storage, name) for name in ("put", "drop", "fetch", "listed", "total_size"))
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
        "also_damage": ((storage.lose, storage.bring_back),),
        "effect": storage.iops.get,
    }
    return Storage(**known | given)
