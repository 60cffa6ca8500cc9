"""The LVM backend: every volume is a logical volume of one volume group on this node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from csi_multi.contract import (
    NO_SECRETS,
    BlockMap,
    Capacity,
    CapacityReport,
    CapacityRequest,
    ChangedBlocks,
    Clone,
    Device,
    DryRunReport,
    Expand,
    ExpandRequest,
    Expansion,
    GroupSnapshot,
    GroupSnapshotRequest,
    GroupSnapshots,
    HealthEntry,
    Import,
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
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeHealth,
    VolumeHealthLister,
    VolumeRequest,
)

from . import config, labels
from .changed_blocks import ChangedBlocksReader
from .copies import VolumeCopier
from .devices import DeviceManager
from .expansion import VolumeExpander
from .explain import LvmDryRunHost
from .groups import GroupManager
from .health import HealthReporter
from .importing import Importer
from .operation import instance_of
from .snapshots import SnapshotManager
from .volumes import VolumeManager


class LvmBackend(
    NodeLocal,
    Expand,
    Clone,
    ListVolumes,
    ListSnapshots,  # includes Snapshots
    GroupSnapshots,
    ChangedBlocks,
    Capacity,
    VolumeHealthLister,  # includes VolumeHealthReporter
    NodeHealthReporter,
    Import,  # includes Explain
):
    contract = (1, 1)
    Config = config.Config
    Parameters = config.Parameters
    SnapshotParameters = config.SnapshotParameters
    GroupSnapshotParameters = config.SnapshotParameters

    config: config.Config

    def __init__(self, config: Any, setting: Setting) -> None:
        super().__init__(config, setting)
        instance = instance_of(self.config, setting)
        self._reports = instance.reports
        self._capacity = instance.capacity
        self._volumes = VolumeManager(instance)
        self._snapshots = SnapshotManager(instance)
        self._groups = GroupManager(instance, self._snapshots, setting)
        self._changed_blocks = ChangedBlocksReader(instance, self._snapshots, setting)
        self._copier = VolumeCopier(instance, self._volumes, self._snapshots)
        self._expander = VolumeExpander(instance, self._volumes)
        self._devices = DeviceManager(instance)
        self._importer = Importer(instance)
        self._health = HealthReporter(instance)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.to_volume(self._volumes.create(request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.to_volume(self._copier.restore(request))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.to_volume(self._copier.clone(request))

    def find_volume(self, name: str) -> Volume:
        return self._volumes.to_volume(self._volumes.find(name))

    def get_volume(self, handle: str) -> Volume:
        return self._volumes.to_volume(self._volumes.get(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self._volumes.delete(handle)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return Expansion(size=self._expander.expand(request.handle, request.size), node_required=True)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        return self._volumes.to_volume(self._importer.import_volume(name, stamp))

    def release_volume(self, handle: str) -> str:
        return self._importer.release(handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._volumes.list_page(page)

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return self._snapshots.create(request)

    def find_snapshot(self, name: str) -> Snapshot:
        return self._snapshots.find(name)

    def get_snapshot(self, handle: str) -> Snapshot:
        return self._snapshots.get(handle)

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self._snapshots.delete(handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return self._snapshots.list_page(page, source)

    # Groups of snapshots

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        return self._groups.create(request)

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return self._groups.find(name)

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return self._groups.get(handle)

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        self._groups.delete(handle)

    # Changed blocks

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return self._changed_blocks.allocated(handle, offset)

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        return self._changed_blocks.changed(base, target, offset)

    # Devices

    def open_device(self, request: OpenRequest) -> Device:
        return self._devices.open(request)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return self._devices.find(handle)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.close(handle)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.refresh(handle)

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return self._devices.has_data(handle)

    # The instance

    def node_of(self, handle: str) -> str:
        return labels.parse_handle("volume", handle)[0]

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        parameters = request.parameters if isinstance(request.parameters, config.Parameters) else config.Parameters()
        return self._capacity.report(parameters)

    def check(self) -> None:
        report = self._reports.fresh()
        self._snapshots.maintain(report)
        self._volumes.resume_suspended(report)

    def resume(self) -> None:
        self._volumes.resume_suspended(self._reports.fresh())
        self._volumes.remove_leftovers()
        self._groups.remove_leftovers()

    def dry_run(self, report: DryRunReport) -> LvmBackend:
        host = LvmDryRunHost(self.setting.host, report, self.config)
        return LvmBackend(self.config, replace(self.setting, host=host))

    # Health

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return self._health.volume(handle)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return self._health.list_page(page)

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self._health.volume(handle)

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return self._health.storage()
