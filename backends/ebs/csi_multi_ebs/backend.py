"""The EBS backend: every volume is an EBS volume of one account and region.

The controller's methods call EC2. The node's methods read the devices of this machine and never call EC2, so a node
needs neither boto3 nor credentials.
"""

from __future__ import annotations

from typing import Any, ClassVar

from csi_multi.contract import (
    NO_SECRETS,
    AccessMode,
    AttachRequest,
    BlockMap,
    Capability,
    CapacityReport,
    CapacityRequest,
    Device,
    DryRunReport,
    ExpandRequest,
    Expansion,
    GroupSnapshot,
    GroupSnapshotRequest,
    HealthEntry,
    Metric,
    ModifyRequest,
    Node,
    OpenRequest,
    Page,
    PageRequest,
    Segments,
    Snapshot,
    SnapshotRequest,
    Stamp,
    Strings,
    Volume,
    VolumeHealth,
    VolumeRequest,
)
from csi_multi.contract import backend as b

from . import attachment_limits, config, groups, snapshots, volume_statistics, volume_types
from .attachments import AttachmentManager
from .capacity import CapacityAccounting
from .changed_blocks import BlockReader
from .client import Client
from .device_identity import NvmeKernel
from .devices import DeviceManager
from .ec2_cache import Ec2Cache
from .explain import DryRunClient
from .groups import GroupManager
from .health import HealthReporter
from .importing import Importer
from .instance_metadata import InstanceMetadata
from .modifications import ModificationManager
from .node_names import NodeNames
from .resources import GIB
from .snapshots import SnapshotManager
from .volumes import VolumeManager


class EbsBackend(
    b.Topology,
    b.NodeFacts,
    b.ReadOnlyAttach,
    b.PublishedNodes,
    b.Expand,
    b.Modify,
    b.Clone,
    b.ListVolumes,
    b.ListSnapshots,
    b.Capacity,
    b.GroupSnapshots,
    b.ChangedBlocks,
    b.VolumeHealthLister,
    b.Import,  # includes b.Explain
):
    contract = (1, 1)
    Config = config.Config
    Parameters = config.Parameters
    MutableParameters = config.MutableParameters
    SnapshotParameters = config.SnapshotParameters
    GroupSnapshotParameters = config.GroupSnapshotParameters
    access_modes: ClassVar[frozenset[AccessMode]] = frozenset(AccessMode)
    check_only_asks = True

    config: config.Config

    def __init__(self, config: Any, setting: b.Setting, client: Client | None = None) -> None:
        """`client` calls EC2; tests and dry runs give their own."""
        super().__init__(config, setting)
        self.well_known_keys = self.config.well_known_zone_keys
        self._cache = Ec2Cache(self.config, setting, client)
        node_names = NodeNames(self._cache)
        self._volumes = VolumeManager(self._cache, node_names)
        self._importer = Importer(self._cache, self._volumes)
        self._attachments = AttachmentManager(self._cache, node_names)
        self._modifications = ModificationManager(self._cache)
        self._snapshots = SnapshotManager(self._cache)
        self._groups = GroupManager(self._cache)
        self._blocks = BlockReader(self._cache)
        self._health = HealthReporter(self._cache)
        self._capacity = CapacityAccounting(self._cache)
        self._devices = DeviceManager(NvmeKernel())
        self._metadata = InstanceMetadata(self.config, setting.node_record)

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        return volume_types.access_mode_problem(capability, parameters)

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.to_volume(self._volumes.create(request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.to_volume(self._volumes.restore(request))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return self._volumes.to_volume(self._volumes.clone(request))

    def find_volume(self, name: str) -> Volume:
        return self._volumes.to_volume(self._volumes.find(name))

    def get_volume(self, handle: str) -> Volume:
        return self._volumes.to_volume(self._volumes.get(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        self._volumes.delete(handle)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        return self._volumes.to_volume(self._importer.import_volume(name, stamp))

    def release_volume(self, handle: str) -> str:
        return self._importer.release(handle)

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._volumes.list_page(page)

    # Attachments and modifications

    def attach(self, request: AttachRequest) -> Strings:
        return self._attachments.attach(request)

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        self._attachments.detach(handle, node)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        return Expansion(size=self._modifications.expand(request.handle, request.size, request.deadline).size * GIB)

    def modify_volume(self, request: ModifyRequest) -> None:
        self._modifications.modify(request.handle, request.mutable, request.deadline)

    def unmodifiable(self, handle: str, mutable: Any) -> str:
        return self._modifications.refusal(handle, mutable)

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return snapshots.to_snapshot(self._snapshots.create(request))

    def find_snapshot(self, name: str) -> Snapshot:
        return snapshots.to_snapshot(self._snapshots.find(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return snapshots.to_snapshot(self._snapshots.get(handle))

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self._snapshots.delete(handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return self._snapshots.list_page(page, source)

    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        return groups.to_group(self._groups.create(request))

    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        return groups.to_group(self._groups.find(name))

    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        return groups.to_group(self._groups.get(handle))

    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        self._groups.delete(handle)

    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        return self._blocks.allocated(handle, offset)

    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        return self._blocks.changed(base, target, offset)

    # The instance

    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        return self._health.volume(handle)

    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        return self._health.list_page(page)

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        return self._capacity.report(request)

    def check(self) -> None:
        """Read the zones, which needs the credentials and the network of every other call; on a node nothing."""
        if self.setting.controller:
            self._cache.client.zones()

    def metrics(self, opened: tuple[str, ...]) -> tuple[Metric, ...]:
        statistics = volume_statistics.metrics(self._devices.log_pages(opened, volume_statistics.LOG_PAGE))
        return (*statistics, *self._cache.pending_detaches.metrics(), *self._cache.client.metrics())

    def dry_run(self, report: DryRunReport) -> b.Backend:
        return EbsDryRun(self.config, self.setting, DryRunClient(self.config, self.setting, report))

    def close(self) -> None:
        self._cache.client.close()
        self._capacity.close()

    # The node

    def node_fact(self) -> str:
        self._devices.blankness.begin()  # kubelet asks for the fact before anything is attached
        return self._metadata.identity().instance

    def node_segments(self) -> Segments:
        return self._metadata.identity().segments

    def max_volumes(self) -> int:
        return attachment_limits.max_volumes(self.config, self._metadata, self._devices.local_disks())

    def open_device(self, request: OpenRequest) -> Device:
        return self._devices.open(request)

    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        return self._devices.find(handle)

    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.close(handle)

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.refresh(handle)

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.blankness.formatting(handle)

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        self._devices.blankness.formatted(handle)

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        return self._devices.blankness.has_data(handle)


class EbsDryRun(EbsBackend):
    """The backend over a client that changes nothing: for `csi-multi explain` and `csi-multi import`."""

    def __init__(self, config: Any, setting: b.Setting, client: DryRunClient) -> None:
        super().__init__(config, setting, client)
        self._client = client

    def create_volume(self, request: VolumeRequest) -> Volume:
        self._client.assume_zones(request)
        return super().create_volume(request)
