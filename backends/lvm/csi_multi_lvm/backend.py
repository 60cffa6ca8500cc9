"""The LVM backend: every volume a logical volume of one volume group on this node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from csi_multi.contract import (
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
    InvalidArgument,
    ListSnapshots,
    ListVolumes,
    NodeHealthReporter,
    NodeLocal,
    OpenRequest,
    Page,
    PageRequest,
    Setting,
    Snapshot,
    SnapshotRequest,
    Stamp,
    StorageError,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeHealth,
    VolumeHealthLister,
    VolumeRequest,
    paged,
)

from . import config, devices, health, names, space, tags, wiping
from . import layout as layouts
from .activation import Activation
from .copies import Copies
from .cutting import Cutter
from .explaining import Door
from .growing import Grower
from .importing import Importer
from .lvm import Lvm
from .making import Maker
from .removal import Remover
from .report import LogicalVolume
from .seen import Seen
from .shelf import Shelf


class LvmBackend(
    NodeLocal,
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

    config: config.Config

    def __init__(self, config: Any, setting: Setting) -> None:
        super().__init__(config, setting)
        group = self.config.volume_group
        handles = names.Names(setting.node, group)
        self._names = handles
        self._lvm = Lvm(setting.host, self.config)
        self._seen = Seen(self._lvm)
        self._volumes = Shelf("volume", names.VOLUME, handles, setting, self._lvm)
        self._snapshots = Shelf("snapshot", names.SNAPSHOT, handles, setting, self._lvm)
        self._activation = Activation(setting.host, self._lvm, group)
        shared = (self.config, self._lvm, self._seen, self._activation, self._volumes)
        self._maker = Maker(*shared)
        self._cutter = Cutter(*shared, self._snapshots)
        self._copies = Copies(*shared, self._maker, self._cutter)
        self._grower = Grower(*shared, self._maker)
        self._importer = Importer(*shared)
        self._remover = Remover(*shared, self._maker, self._grower)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._volume(self._maker.create(self._names.leaf(request.name), request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        leaf = self._source("snapshot", request)  # before any command: it may be another node's
        source = self._snapshots.known(self._seen.report(), leaf)
        return self._volume(self._copies.restore(self._names.leaf(request.name), request, source))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        leaf = self._source("volume", request)  # before any command: it may be another node's
        source = self._volumes.known(self._seen.report(), leaf)
        return self._volume(self._copies.clone(self._names.leaf(request.name), request, source))

    def find_volume(self, name: str) -> Volume:
        return self._volume(self._volumes.get(self._names.leaf(name)))

    def get_volume(self, handle: str) -> Volume:
        return self._volume(self._volumes.get(self._volumes.leaf(handle)))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self._remover.remove(self._volumes.leaf(handle))

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        size = self._grower.grow(self._volumes.leaf(request.handle), request.size)
        return Expansion(size=size, node_required=True)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        return self._volume(self._importer.take(name, self._names.leaf(stamp.name), stamp))

    def release_volume(self, handle: str) -> str:
        return self._importer.release(self._volumes.leaf(handle), handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._listed(self._volumes, page, self._volume)

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        source = self._volumes.leaf(request.source)
        return self._cutter.cut(self._names.leaf(request.name), request, source)

    def find_snapshot(self, name: str) -> Snapshot:
        return self._cutter.shown(self._snapshots.get(self._names.leaf(name)))

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._cutter.shown(self._snapshots.get(self._snapshots.leaf(handle)))

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self._cutter.remove(self._snapshots.leaf(handle))

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        def load(found: LogicalVolume) -> Snapshot | None:
            snapshot = self._cutter.shown(found)
            return snapshot if source in (None, snapshot.source) else None

        return self._listed(self._snapshots, page, load)

    # Devices

    def open_device(self, request: OpenRequest) -> Device:
        leaf = self._volumes.leaf(request.handle)
        found = self._volumes.get(leaf)
        shown = self._activation.activate(found)
        path = self._activation.path(shown)
        found = wiping.prepare(self._lvm, found, path, block=request.block, again=lambda: self._volumes.get(leaf))
        devices.set_read_only(path, shown, request.read_only)
        return self._device(shown, found)

    def find_device(self, handle: str) -> Device | None:
        leaf = self._volumes.leaf(handle)
        shown = self._activation.shown(self._volumes.name(leaf))
        if shown is None:
            return None
        found = self._volumes.get(leaf)
        return self._device(shown, found) if shown.uuid == found.uuid else None

    def close_device(self, handle: str) -> None:
        leaf = self._volumes.leaf(handle)
        name = self._volumes.name(leaf)
        self._activation.deactivate(name, f'lv_tags={{"{self._volumes.owner}"}}')
        if self._activation.shown(name):
            self._volumes.get(leaf)  # which says whose it is

    def refresh_device(self, handle: str) -> None:
        self._volumes.get(self._volumes.leaf(handle))  # lvextend has shown the new size already

    def formatting(self, handle: str) -> None:
        found = self._volumes.get(self._volumes.leaf(handle))
        if not wiping.unused(found) and tags.FORMATTING not in found.tags:
            raise FailedPrecondition(f"volume {handle!r} may hold data and must not be formatted")
        wiping.forward(self._lvm, found, tags.FORMATTING)

    def formatted(self, handle: str) -> None:
        wiping.forward(self._lvm, self._volumes.get(self._volumes.leaf(handle)), "")

    # The instance

    def node_of(self, handle: str) -> str:
        return names.parse("volume", handle)[0]

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        parameters = request.parameters if isinstance(request.parameters, config.Parameters) else config.Parameters()
        layout = layouts.of(parameters, self.config)
        self._seen.forget()
        return space.capacity(self._seen.report(), layout, self.config)

    def check(self) -> None:
        self._seen.forget()
        report = self._seen.report()
        self._cutter.tend(report)
        for found in self._volumes.all(report):
            if found.suspended:
                self._activation.mend(found.name)

    def resume(self) -> None:
        self._remover.sweep()

    def dry_run(self, report: DryRunReport) -> LvmBackend:
        return LvmBackend(self.config, replace(self.setting, host=Door(self.setting.host, report, self.config)))

    # Health

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        leaf = self._volumes.leaf(handle)
        report = self._lvm.report()
        found = self._volumes.ours(leaf, report.volumes.get(self._volumes.name(leaf)))
        return health.of_volume(report, found)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        report = self._lvm.report()

        def load(found: LogicalVolume) -> VolumeHealth | None:
            entries = health.of_volume(report, found)
            return VolumeHealth(handle=self._volumes.handle(found), entries=entries) if entries else None

        return self._listed(self._volumes, page, load)

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self.volume_health(handle, {})

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        try:
            return health.of_group(self._lvm.report(), self.config, self._volumes.owner)
        except StorageError as error:
            return (health.unreachable(error),)

    def _listed(self, shelf: Shelf, page: PageRequest, load: Callable[[LogicalVolume], Any]) -> Page[Any]:
        found = {one.name.removeprefix(shelf.prefix): one for one in shelf.all(self._lvm.report())}
        return paged(sorted(found), page, lambda leaf: load(found[leaf]))

    def _source(self, kind: str, request: VolumeRequest) -> str:
        if request.source is None or request.source.kind.value != kind:
            raise InvalidArgument(f"a {kind} is needed as content source")
        return (self._volumes if kind == "volume" else self._snapshots).leaf(request.source.handle)

    def _volume(self, found: LogicalVolume) -> Volume:
        return Volume(handle=self._volumes.handle(found), size=found.size, stamp=self._volumes.stamp(found))

    def _device(self, shown: devices.Shown, found: LogicalVolume) -> Device:
        return Device(
            path=self._activation.path(shown),
            number=shown.number,
            proof={"dm/uuid": found.uuid},
            blank=wiping.blank(found),
            read_only=shown.read_only,
        )
