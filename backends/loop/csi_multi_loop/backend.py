"""The loop-file backend: every volume is a sparse file, shown to its node as a loop device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
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
    ids,
)
from csi_multi.host.loopfile import LoopDevices

from . import config
from .capacity import CapacityAccounting
from .changed_blocks import ChangedBlocksReader
from .client import Client
from .devices import DeviceManager
from .directory import Directory
from .errors import translated
from .explain import DryRunClient, DryRunDirectory, dry_run_freeze
from .group_cut import GroupCut
from .group_store import GroupMembers, GroupStore, SnapshotStore
from .groups import GroupManager
from .health import HealthReporter
from .importing import Importer
from .labels import VolumeLabel
from .leftovers import Leftovers
from .listing import Listing
from .quiesce import Quiescer
from .snapshots import SnapshotManager
from .store import NAME_PARTS, Store
from .volumes import VolumeManager


class LoopBackend(
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

    config: config.Config

    def __init__(
        self,
        config: Any,
        setting: Setting,
        client: Client | None = None,
        directory: Directory | None = None,
    ) -> None:
        """`client` and `directory` change the machine; a dry run passes its own."""
        super().__init__(config, setting)
        client = client or Client()
        directory = directory or Directory(self.config, setting, client)
        volumes = Store(directory, "volume", VolumeLabel, setting, client)
        groups = GroupStore(directory, setting, client)
        snapshots = SnapshotStore(directory, groups, setting, client)
        members = GroupMembers(groups, snapshots, client)
        self._directory = directory
        self._leftovers = (Leftovers(volumes, client), Leftovers(snapshots, client))
        self._members = members
        self._quiescer = Quiescer(volumes=volumes, frozen=setting.frozen)
        self._capacity = CapacityAccounting(self.config, directory)
        self._volumes = VolumeManager(
            config=self.config,
            directory=directory,
            volumes=volumes,
            snapshots=snapshots,
            capacity=self._capacity,
            quiescer=self._quiescer,
            client=client,
        )
        self._snapshots = SnapshotManager(
            directory=directory,
            volumes=volumes,
            snapshots=snapshots,
            groups=groups,
            capacity=self._capacity,
            quiescer=self._quiescer,
            client=client,
        )
        self._groups = GroupManager(
            directory=directory,
            volumes=volumes,
            snapshots=snapshots,
            groups=groups,
            members=members,
            manager=self._snapshots,
            group_cut=GroupCut(volumes=volumes, frozen=setting.frozen, client=client),
        )
        self._changed_blocks = ChangedBlocksReader(directory=directory, snapshots=snapshots)
        self._devices = DeviceManager(
            directory=directory, volumes=volumes, loop_files=LoopDevices(setting.host, name_parts=NAME_PARTS)
        )
        self._health = HealthReporter(directory=directory, volumes=volumes)
        self._listing = Listing(
            directory=directory,
            volume_store=volumes,
            snapshot_store=snapshots,
            group_store=groups,
            health_reporter=self._health,
        )
        self._importer = Importer(directory=directory, volumes=volumes, capacity=self._capacity, client=client)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.create(request)

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.restore(request)

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.clone(request)

    def find_volume(self, name: str) -> Volume:
        return self._volumes.find(name)

    def get_volume(self, handle: str) -> Volume:
        return self._volumes.get(handle)

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self._volumes.delete(handle)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return self._volumes.expand(request)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._listing.volumes(page)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        return self._importer.import_volume(Path(name), stamp)

    def release_volume(self, handle: str) -> str:
        return self._importer.release(handle)

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
        return self._listing.snapshots(page, source)

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
        self._volumes.formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._volumes.formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return self._devices.has_data(handle)

    # The instance

    def node_of(self, handle: str) -> str:
        return ids.split_local("volume", handle)[0]

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return self._capacity.report()

    @translated("checking the directory")
    def check(self) -> None:
        self._directory.check()
        self._repair()

    @translated("cleaning up after an interrupted process")
    def resume(self) -> None:
        self._directory.prepare()
        self._repair()

    def _repair(self) -> None:
        """Finish what a process left that died, or that had no descriptor or space to finish it."""
        self._directory.share()
        for leftovers in self._leftovers:
            leftovers.remove()
        self._members.remove_leftovers()

    def close(self) -> None:
        self._directory.changes.close()

    def dry_run(self, report: DryRunReport) -> LoopBackend:
        client = DryRunClient(report)
        directory = DryRunDirectory(self.config, self.setting, client, report)
        setting = replace(self.setting, frozen=dry_run_freeze(report))
        return LoopBackend(self.config, setting, client, directory)

    # Health

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return self._health.volume(handle)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return self._listing.volume_health(page)

    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        return self._health.volume_on_node(handle)

    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        return self._health.storage()
