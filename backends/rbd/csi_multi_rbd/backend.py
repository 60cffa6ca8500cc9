"""The RBD backend: every volume, and every snapshot, an image in one pool of a Ceph cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from csi_multi.contract import (
    AccessMode,
    Capability,
    Capacity,
    CapacityReport,
    CapacityRequest,
    Clone,
    Device,
    DryRunReport,
    Expand,
    ExpandRequest,
    Expansion,
    FailedPrecondition,
    HealthEntry,
    Import,
    ListSnapshots,
    ListVolumes,
    NodeHealthReporter,
    OpenRequest,
    Page,
    PageRequest,
    ResourceExhausted,
    Segments,
    Setting,
    Snapshot,
    SnapshotRequest,
    Stamp,
    StorageHealthEntry,
    Strings,
    Timeout,
    Topology,
    TopologyRequirement,
    Unavailable,
    Volume,
    VolumeHealth,
    VolumeHealthLister,
    VolumeRequest,
)

from . import config, keys, names, stamps
from .ceph import Ceph
from .copies import Copier
from .devices import Devices, Use
from .flattening import Flattener
from .gate import Gate
from .growing import grow
from .health import ClusterHealth
from .importing import Importer
from .listing import Listing
from .making import Maker
from .notes import Notes
from .purging import Purger
from .rbd import Rbd
from .removal import Remover
from .rows import Listed
from .shelf import Shelf
from .shell import Background, Shell
from .space import Space
from .stamps import Label

MANY_WRITERS = (AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER)


class RbdBackend(
    Topology,
    Expand,
    Clone,
    ListVolumes,
    ListSnapshots,  # and so Snapshots
    Capacity,
    VolumeHealthLister,  # and so VolumeHealthReporter
    NodeHealthReporter,
    Import,  # and so Explain
):
    contract = (1, 0)
    Config = config.Config
    Parameters = config.Parameters
    SnapshotParameters = config.SnapshotParameters
    access_modes = frozenset(AccessMode)

    config: config.Config

    def __init__(
        self, settings: Any, setting: Setting, shell: Shell | None = None, background: Shell | None = None
    ) -> None:
        """The last two are doors to the commands; by default the real ones."""
        super().__init__(settings, setting)
        self.everywhere = not self.config.topology
        self._pool = self.config.data_pool or self.config.pool  # where data goes, unless a class says otherwise
        shell, gate = shell or Shell(setting.observe), Gate()
        background = background or Background(setting.observe)
        self._rbd = Rbd(self.config, shell, gate)
        patient = Rbd(self.config, background, gate)
        ceph = Ceph(self.config, shell, gate)
        self._volumes = Shelf(names.VOLUME, setting)
        self._snapshots = Shelf(names.SNAPSHOT, setting)
        shelves = (self._volumes, self._snapshots)
        self._space = Space(self.config, ceph)
        self._health = ClusterHealth(self.config, ceph, self._space)
        self.purger = Purger(patient, shelves, alone=not self.config.keyring)
        self._flattener = Flattener(self.config, Ceph(self.config, background, gate), patient, shelves)
        self._maker = Maker(self.config, self._volumes, self._space, self.purger)
        self._copier = Copier(self.config, *shelves, self._maker, self._space, self._flattener)
        self._importer = Importer(*shelves)
        self._remover = Remover(self._maker, self.purger)
        self._listed_volumes = Listing(self._volumes, self._rbd)
        self._listed_snapshots = Listing(self._snapshots, self._rbd)
        self._devices = Devices(self.config, setting, self._rbd)
        self._notes = Notes(self.config, setting, self._volumes, self._rbd, self._devices)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        self._refuse_elsewhere(request.topology)
        leaf = names.leaf_for(request.name)
        with self._changing(request.secrets) as rbd:
            return self._volume(leaf, *self._maker.create(rbd, leaf, request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        self._refuse_elsewhere(request.topology)
        leaf, source = names.leaf_for(request.name), self._snapshots.leaf(names.source(request))
        with self._changing(request.secrets) as rbd:
            return self._volume(leaf, *self._copier.restore(rbd, leaf, request, source))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        self._refuse_elsewhere(request.topology)
        leaf, source = names.leaf_for(request.name), self._volumes.leaf(names.source(request))
        with self._changing(request.secrets) as rbd:
            return self._volume(leaf, *self._copier.clone(rbd, leaf, request, source))

    def find_volume(self, name: str) -> Volume:
        return self.get_volume(names.leaf_for(name))

    def get_volume(self, handle: str) -> Volume:
        found, label = self._volumes.get(self._rbd, self._volumes.leaf(handle))
        return self._volume(handle, found.image.size, label)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        with self._changing(secrets) as rbd:
            self._remover.remove(rbd, self._volumes, self._volumes.leaf(handle))

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        leaf = self._volumes.leaf(request.handle)
        with self._changing(request.secrets) as rbd:
            size = grow(rbd, self._volumes, leaf, request.size, self.config, self._space)
        return Expansion(size=size, node_required=True)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        with self._changing({}) as rbd:
            return self._volume(*self._importer.take(rbd, name, stamp))

    def release_volume(self, handle: str) -> str:
        with self._changing({}) as rbd:
            return self._importer.release(rbd, self._volumes.leaf(handle))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._listed_volumes.page(page, self._listed_volume)

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        leaf = names.leaf_for(request.name)
        with self._changing(request.secrets) as rbd:
            return self._snapshot(leaf, *self._copier.snapshot(rbd, leaf, request))

    def find_snapshot(self, name: str) -> Snapshot:
        return self.get_snapshot(names.leaf_for(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        found, label = self._snapshots.get(self._rbd, self._snapshots.leaf(handle))
        return self._snapshot(handle, found.image.size, label)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        with self._changing(secrets) as rbd:
            self._remover.remove(rbd, self._snapshots, self._snapshots.leaf(handle))

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        def told(image: Listed, label: Label) -> Snapshot | None:
            if source not in (None, label.source):
                return None
            return self._snapshot(self._snapshots.leaf_of(image.name), image.size, label)

        return self._listed_snapshots.page(page, told)

    # Places, room, health

    def node_segments(self) -> Segments:
        if not any(fnmatchcase(self.setting.node, pattern) for pattern in self.config.nodes):
            raise FailedPrecondition(
                f"node {self.setting.node!r} does not reach this cluster: its name fits none of `nodes`, "
                f"{', '.join(self.config.nodes)}"
            )
        return self.config.topology

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        if request.segments and not self._reachable(request.segments):
            return CapacityReport(available=0)
        parameters = request.parameters
        return self._space.report((parameters and parameters.data_pool) or self._pool)

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        entries = self._health.entries()
        try:
            self.get_volume(handle)
        except (ResourceExhausted, Unavailable, Timeout):
            if not entries:
                raise  # else whether there is such a volume cannot be told, but what is wrong can
        return entries

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        entries = self._health.entries()

        def told(image: Listed, _: Label) -> VolumeHealth | None:
            return VolumeHealth(handle=self._volumes.leaf_of(image.name), entries=entries) if entries else None

        return self._listed_volumes.page(page, told)

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        image = self._image(handle)
        if self._has_key() and self._devices.find(image) is None:
            self.get_volume(handle)  # what is mapped here is there
        return self._devices.health(image)

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return self._health.storage() if self._has_key() else ()

    # Devices

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        if capability.mode in MANY_WRITERS and not capability.block:
            return f"access mode {capability.mode.name} is for raw block volumes: a filesystem has one writer"
        return super().unsupported(capability, parameters)

    def open_device(self, request: OpenRequest) -> Device:
        leaf = self._volumes.leaf(request.handle)
        with self._changing(request.secrets) as rbd:
            found, label = self._volumes.get(rbd, leaf)
            use = Use(
                mounter=label.mounter or self.config.mounter,
                map_options=label.map_options or self.config.map_options,
                unmap_options=label.unmap_options or self.config.unmap_options,
                exclusive=request.capability is None or request.capability.mode.single_node,
            )
            blank = stamps.blank(label, found.metadata)
            self._notes.lend(request, blank)
            return self._devices.open(rbd, found.image, use, request, blank)

    def find_device(self, handle: str) -> Device | None:
        return self._devices.find(self._image(handle))

    def close_device(self, handle: str) -> None:
        self._notes.forget(handle)
        self._devices.close(self._image(handle))

    def refresh_device(self, handle: str) -> None:
        self._devices.refresh(self._image(handle))

    def formatting(self, handle: str) -> None:
        self._notes.formatting(handle)

    def formatted(self, handle: str) -> None:
        self._notes.formatted(handle)

    # Life

    def check(self) -> None:
        if not (self.setting.controller and self.config.keyring):
            return  # a thousand nodes need not ask the monitors how they are
        self._health.status()
        self._space.report(self._pool)
        self.purger.sweep()
        self._flattener.resume()  # where it could not when the process started

    def resume(self) -> None:
        self._devices.heal()
        if self.setting.controller and self.config.keyring:
            self.purger.sweep(now=True)
            self._copier.resume(self._rbd)
            self._flattener.resume()

    def dry_run(self, report: DryRunReport) -> RbdBackend:
        from .explaining import DryRunBackend  # which is one of these

        return DryRunBackend(self.config, self.setting, report)

    def close(self) -> None:
        self.purger.close()
        self._flattener.close()

    @contextmanager
    def _changing(self, secrets: Strings) -> Iterator[Rbd]:
        """Act as the user of a request's secrets, or as the instance's."""
        with self._rbd.using(secrets) as rbd:
            try:
                yield rbd
            except (Timeout, ResourceExhausted):
                self._space.doubt()
                raise

    def _has_key(self) -> bool:
        """Whether the cluster can be asked without a request's secrets."""
        return keys.at_hand(self.config, self.setting)

    def _image(self, handle: str) -> str:
        """Return the name of the volume's image. Raises NotFound."""
        return self._volumes.name(self._volumes.leaf(handle))

    def _refuse_elsewhere(self, wanted: TopologyRequirement | None) -> None:
        if wanted and wanted.requisite and not any(map(self._reachable, wanted.requisite)):
            raise ResourceExhausted(
                f"this cluster is reached from {dict(self.config.topology)}, which none of the requisite topologies has"
            )

    def _reachable(self, segments: Segments) -> bool:
        return all(segments.get(key) == value for key, value in self.config.topology.items())

    def _volume(self, handle: str, size: int, label: Label) -> Volume:
        places = (self.config.topology,) if self.config.topology else ()
        return Volume(handle=handle, size=size, stamp=label.stamp, topology=places)

    def _listed_volume(self, image: Listed, label: Label) -> Volume:
        return self._volume(self._volumes.leaf_of(image.name), image.size, label)

    def _snapshot(self, handle: str, size: int, label: Label) -> Snapshot:
        return Snapshot(
            handle=handle,
            source=label.source,
            size=size,
            created=datetime.fromtimestamp(label.cut, UTC),
            stamp=label.stamp,
            topology=(self.config.topology,) if self.config.topology else (),
        )
