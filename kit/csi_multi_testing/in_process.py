"""The client in process: the idempotent core, and the locks it holds, around a backend object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from csi_multi.contract import (
    AttachRequest,
    Capability,
    CapacityReport,
    CapacityRequest,
    Device,
    ExpandRequest,
    Expansion,
    Extent,
    GroupSnapshot,
    GroupSnapshotRequest,
    HealthEntry,
    ModifyRequest,
    Node,
    OpenRequest,
    Page,
    PageRequest,
    Segments,
    SizeRange,
    Snapshot,
    SnapshotRequest,
    Stamp,
    StorageError,
    Strings,
    Volume,
    VolumeHealth,
    VolumeRequest,
    ids,
)
from csi_multi.contract import backend as b
from csi_multi.contract.params import parse
from csi_multi.core import idempotent, topology
from csi_multi.core.filesystems import FS_TYPE
from csi_multi.core.idempotent import digest, require
from csi_multi.core.locks import Locks
from csi_multi.host.command import LocalHost

from .fault_injection import FaultInjector
from .growth import attached_to_grow, grows_only_attached
from .protocol import BLOCK, Target, VolumeSpec
from .storage import Storage

B = TypeVar("B", bound=b.Backend)


class InProcessClient:
    """Calls a backend object through the idempotent core, with the core's locks."""

    target = Target.BACKEND

    def __init__(self, storage: Storage, injector: FaultInjector) -> None:
        self.storage = storage
        self.injector = injector
        self.attached: set[tuple[str, str]] = set()  # (handle, node id)
        self._connect()

    def _connect(self) -> None:
        self.backend: Any = self.storage.connect(self.injector.host(LocalHost()))
        self._process = self.injector.process
        self._locks = Locks()

    @property
    def grows_only_attached(self) -> bool:
        return grows_only_attached(type(self.backend))

    def kind_of(self, error: type[StorageError]) -> type[StorageError]:
        return error

    def restart(self, *, resume: bool = True) -> None:
        self.storage.restarted()
        self._connect()
        if resume:
            self.backend.resume()

    def replace_dead_process(self) -> None:
        """Start the next process if the last one died, for the clean-up of a check that failed before it did so."""
        if self.injector.process != self._process:
            with suppress(Exception):  # reported where the check called it
                self.storage.restarted()
            self._connect()
            with suppress(Exception):
                self.backend.resume()

    def close(self) -> None:
        self.backend.close()

    def _feature(self, feature: type[B]) -> B:
        return require(self.backend, feature, feature.__name__)

    def _stamp(self, name: str, *parameters: Mapping[str, str], **more: Any) -> Stamp:
        setting = self.backend.setting
        return Stamp(driver=setting.driver, cluster=setting.cluster, name=name, digest=digest(*parameters), **more)

    def request(self, spec: VolumeSpec) -> VolumeRequest:
        """Return the request that the core hands to the backend."""
        fs_types = {one.mount.fs_type or "ext4" for one in spec.capabilities if one.mount}
        kind = type(self.backend)
        return VolumeRequest(
            stamp=self._stamp(
                spec.name,
                spec.parameters,
                spec.mutable,
                source=spec.source,
                context={FS_TYPE: fs_types.pop()} if fs_types else {},
            ),
            size=spec.size,
            capabilities=spec.capabilities,
            parameters=parse(kind.Parameters, spec.parameters, "parameters"),
            mutable=parse(kind.MutableParameters, spec.mutable, "mutable_parameters") if spec.mutable else None,
            topology=spec.topology if topology.constrained(self.backend) else None,
            secrets=spec.secrets or self.storage.secrets,
        )

    def create(self, spec: VolumeSpec) -> Volume:
        shared = [(spec.source.kind.value, spec.source.handle)] if spec.source else []
        with self._locks.hold("CreateVolume", [("new volume", spec.name)], shared):
            return idempotent.create_volume(self.backend, self.request(spec), self.backend.setting.node)

    def delete(self, handle: str) -> None:
        with self._locks.hold("DeleteVolume", [("volume", handle)]):
            idempotent.delete_volume(self.backend, handle, self.storage.secrets)

    def get(self, handle: str) -> Volume:
        found: Volume = self.backend.get_volume(handle)
        return found

    def list_volumes(self, cursor: str = "", limit: int = 0) -> Page[Volume]:
        return self._feature(b.ListVolumes).list_volumes(PageRequest(cursor=cursor, limit=limit))

    def expand(self, handle: str, size: SizeRange) -> Expansion:
        wanted = ExpandRequest(handle=handle, size=size, capability=BLOCK, secrets=self.storage.secrets)
        locked = self._locks.hold("ControllerExpandVolume", [("size", handle)], [("volume", handle)])
        with attached_to_grow(self, handle), locked:
            return idempotent.expand_volume(self._feature(b.Expand), wanted)

    def modify(self, handle: str, mutable: Strings) -> None:
        own = parse(type(self.backend).MutableParameters, mutable, "mutable_parameters")
        with self._locks.hold("ControllerModifyVolume", [("attributes", handle)], [("volume", handle)]):
            wanted = ModifyRequest(handle=handle, mutable=own, secrets=self.storage.secrets)
            self._feature(b.Modify).modify_volume(wanted)

    def capacity(self, segments: Segments | None = None, capabilities: tuple[Capability, ...] = ()) -> CapacityReport:
        own = parse(type(self.backend).Parameters, self.storage.parameters, "parameters")
        wanted = CapacityRequest(capabilities=capabilities, parameters=own, segments=segments)
        found = idempotent.capacity(self._feature(b.Capacity), wanted, self.backend.setting.node)
        return found or CapacityReport(available=0)

    def snapshot(self, name: str, source: str) -> Snapshot:
        wanted = SnapshotRequest(stamp=self._stamp(name, {}), source=source, secrets=self.storage.secrets)
        with self._locks.hold("CreateSnapshot", [("new snapshot", name)], [("volume", source)]):
            return idempotent.create_snapshot(self._feature(b.Snapshots), wanted)

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._feature(b.Snapshots).get_snapshot(handle)

    def delete_snapshot(self, handle: str) -> None:
        with self._locks.hold("DeleteSnapshot", [("snapshot", handle)]):
            idempotent.delete_snapshot(self._feature(b.Snapshots), handle, self.storage.secrets)

    def list_snapshots(self, cursor: str = "", limit: int = 0, source: str | None = None) -> Page[Snapshot]:
        return self._feature(b.ListSnapshots).list_snapshots(PageRequest(cursor=cursor, limit=limit), source)

    def group(self, name: str, sources: Sequence[str]) -> GroupSnapshot:
        wanted = GroupSnapshotRequest(stamp=self._stamp(name, {}), sources=tuple(sources), secrets=self.storage.secrets)
        with self._locks.hold(
            "CreateVolumeGroupSnapshot", [("new group snapshot", name)], [("volume", one) for one in sources]
        ):
            return idempotent.create_group_snapshot(self._feature(b.GroupSnapshots), wanted)

    def get_group(self, handle: str) -> GroupSnapshot:
        return self._feature(b.GroupSnapshots).get_group_snapshot(handle)

    def delete_group(self, handle: str) -> None:
        with self._locks.hold("DeleteVolumeGroupSnapshot", [("group snapshot", handle)]):
            idempotent.delete_group_snapshot(self._feature(b.GroupSnapshots), handle, self.storage.secrets)

    def attach(self, handle: str, node: Node, capability: Capability = BLOCK, *, read_only: bool = False) -> Strings:
        wanted = AttachRequest(
            handle=handle, node=node, capability=capability, read_only=read_only, secrets=self.storage.secrets
        )
        with self._locks.hold("ControllerPublishVolume", [("volume", handle)]):
            self.backend.get_volume(handle)
            context = self._feature(b.Attach).attach(wanted)
        self.attached.add((handle, node.id))
        return context

    def detach(self, handle: str, node: Node | None) -> None:
        with self._locks.hold("ControllerUnpublishVolume", [("volume", handle)]):
            idempotent.detach(self._feature(b.Attach), handle, node, self.storage.secrets)
        self.attached -= {pair for pair in self.attached if pair[0] == handle and (not node or pair[1] == node.id)}

    def node(self) -> Node:
        """Return the node of this process."""
        name, fact = self.backend.setting.node, ""
        if isinstance(self.backend, b.NodeFacts):
            fact = self.backend.node_fact()
        return Node(name=name, fact=fact, id=ids.join_node(name, {self.backend.setting.instance: fact} if fact else {}))

    def allocated(self, handle: str, offset: int = 0) -> list[Extent]:
        return list(self._feature(b.ChangedBlocks).allocated_blocks(handle, offset, self.storage.secrets).extents)

    def changed(self, base: str, target: str, offset: int = 0) -> list[Extent]:
        return list(self._feature(b.ChangedBlocks).changed_blocks(base, target, offset, self.storage.secrets).extents)

    def health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self._feature(b.VolumeHealthReporter).volume_health(handle, self.storage.secrets)

    def list_health(self, cursor: str = "", limit: int = 0) -> Page[VolumeHealth]:
        page = PageRequest(cursor=cursor, limit=limit)
        return self._feature(b.VolumeHealthLister).list_volume_health(page, self.storage.secrets)

    def places(self, volume: Volume) -> tuple[Segments, ...]:
        return topology.of_volume(self.backend, volume)

    def segments(self) -> Segments:
        return topology.node_segments(self.backend, self.backend.setting.node)

    @contextmanager
    def open_device(self, handle: str, *, read_only: bool = False) -> Iterator[Device]:
        """Open a volume's device; close it after the block."""
        with self._attached(handle) as context:
            wanted = OpenRequest(
                handle=handle, read_only=read_only, block=True, publish_context=context, secrets=self.storage.secrets
            )
            device = self.backend.open_device(wanted)
            try:
                yield device
            finally:
                self.backend.close_device(handle)

    @contextmanager
    def _attached(self, handle: str) -> Iterator[Strings]:
        """Attach a volume to this node if the backend attaches. A volume that was attached before stays attached."""
        if not isinstance(self.backend, b.Attach):
            yield {}
            return
        node = self.node()
        stays = (handle, node.id) in self.attached
        context = self.attach(handle, node)
        try:
            yield context
        finally:
            if not stays:
                self.detach(handle, node)

    @contextmanager
    def device_path(self, handle: str, *, read_only: bool = False) -> Iterator[Path]:
        with self.open_device(handle, read_only=read_only) as device:
            yield device.path
