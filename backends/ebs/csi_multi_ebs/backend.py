"""The contract, on EBS: what each method means there, and which module does it.

The controller's methods call EC2; the node's look at this machine's devices and never call EC2, so a
node needs neither boto3 nor credentials.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from csi_multi.contract import (
    AccessMode,
    AttachRequest,
    Capability,
    CapacityReport,
    CapacityRequest,
    Device,
    DryRunReport,
    ExpandRequest,
    Expansion,
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
    VolumeRequest,
)
from csi_multi.contract import backend as b

from . import config, limits, snapshots, tags
from .account import GIB, Account
from .attaching import WRITABLE, Attaching
from .blockdev import Kernel
from .capacity import Room
from .changing import Changing
from .devices import Devices
from .ec2 import Ec2
from .imds import Metadata
from .importing import Importer
from .listing import Listing
from .making import Making
from .nodes import Nodes
from .rows import VolumeRow
from .snapshots import Cutting

SHARED = ("io1", "io2")  # types that several nodes may have attached at once


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
    b.Import,  # and so b.Explain
):
    contract = (1, 0)
    Config = config.Config
    Parameters = config.Parameters
    MutableParameters = config.MutableParameters
    SnapshotParameters = config.SnapshotParameters
    access_modes: ClassVar[frozenset[AccessMode]] = frozenset(AccessMode)

    config: config.Config

    def __init__(self, config: Any, setting: b.Setting, ec2: Ec2 | None = None) -> None:
        """`ec2` is the door to EC2; by default the real one."""
        super().__init__(config, setting)
        self._account = Account(self.config, setting, ec2)
        self._nodes = Nodes(self._account)
        self._making = Making(self._account)
        self._importer = Importer(self._account, self._making)
        self._attaching = Attaching(self._account, self._nodes)
        self._cutting = Cutting(self._account)
        self._room = Room(self._account)
        self._devices = Devices(Kernel())
        self._metadata = Metadata(self.config)

    @cached_property
    def _changing(self) -> Changing:
        return Changing(self._account)

    @cached_property
    def _volumes(self) -> Listing[VolumeRow]:
        ec2, owner = self._account.ec2, self._account.owner
        return Listing(lambda token: ec2.volume_page(owner, 0, token), ec2.volumes)

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        if capability.mode.single_node:
            return ""
        if not capability.block:
            return f"access mode {capability.mode.name} is for block devices only: no filesystem can be mounted twice"
        if parameters is not None and parameters.type not in SHARED:
            return f"access mode {capability.mode.name} needs type io1 or io2 (Multi-Attach), not {parameters.type}"
        return ""

    # Volumes

    def create_volume(self, request: VolumeRequest) -> Volume:
        return self._told(self._making.create(request))

    def restore_volume(self, request: VolumeRequest) -> Volume:
        return self._told(self._making.restore(request))

    def clone_volume(self, request: VolumeRequest) -> Volume:
        return self._told(self._making.clone(request))

    def find_volume(self, name: str) -> Volume:
        return self._told(self._making.find(name))

    def get_volume(self, handle: str) -> Volume:
        return self._told(self._account.volume(handle))

    def delete_volume(self, handle: str, secrets: Strings) -> None:
        row = self._account.volume(handle)
        if self._account.stamp("volume", row).imported:
            raise b.not_ours_to_delete(handle)
        self._making.delete(row)

    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        return self._told(self._importer.take(name, stamp))

    def release_volume(self, handle: str) -> str:
        return self._importer.release(self._account.volume(handle))

    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        return self._volumes.read(page, self._all_told)

    def _all_told(self, rows: dict[str, VolumeRow]) -> Any:
        """Return what tells one of the rows; the nodes of all are asked for in one call."""
        self._nodes.names({one.instance for row in rows.values() for one in row.attachments})
        return lambda handle: self._if_ours(rows.get(handle))

    def _if_ours(self, row: VolumeRow | None) -> Volume | None:
        there = row is not None and row.state not in ("deleting", "deleted", "error") and tags.stamp(row.tags)
        return self._told(row) if row and there else None

    def _told(self, row: VolumeRow) -> Volume:
        return Volume(
            handle=row.id,
            size=row.size * GIB,
            stamp=self._account.stamp("volume", row),
            topology=({"zone": row.zone},),
            published_nodes=self._nodes.of(row),
        )

    # Attaching and changing

    def attach(self, request: AttachRequest) -> Strings:
        return self._attaching.attach(request)

    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        self._attaching.detach(handle, node)

    def expand_volume(self, request: ExpandRequest) -> Expansion:
        row = self._changing.expand(request.handle, request.size, self._account.ends(request.deadline))
        return Expansion(size=row.size * GIB)

    def modify_volume(self, request: ModifyRequest) -> None:
        self._changing.modify(request.handle, request.mutable, self._account.ends(request.deadline))

    # Snapshots

    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        return snapshots.told(self._cutting.create(request))

    def find_snapshot(self, name: str) -> Snapshot:
        return snapshots.told(self._cutting.find(name))

    def get_snapshot(self, handle: str) -> Snapshot:
        return snapshots.told(self._account.snapshot(handle))

    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        self._cutting.delete(handle)

    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        return self._cutting.listed(page, source)

    # The instance

    def capacity(self, request: CapacityRequest) -> CapacityReport:
        parameters = request.parameters or config.Parameters()
        return self._room.report(parameters.type, request.segments)

    def check(self) -> None:
        """Ask for the zones, which needs the credentials and the network that everything else needs."""
        self._account.ec2.zones()

    def dry_run(self, report: DryRunReport) -> b.Backend:
        from .explaining import DryRunBackend  # which is one of these

        return DryRunBackend(self.config, self.setting, report)

    def close(self) -> None:
        self._account.ec2.close()
        self._room.close()

    # The node

    def node_fact(self) -> str:
        return self._metadata.identity().instance

    def node_segments(self) -> Segments:
        return {"zone": self._metadata.identity().zone}

    def max_volumes(self) -> int:
        here = self._metadata
        beside = limits.Attached(
            interfaces=here.interfaces(), disks=self._devices.local_disks(), volumes=here.launched()
        )
        most = limits.allowed(self.config, here.identity().type, beside)
        return min(most, len(WRITABLE))

    def open_device(self, request: OpenRequest) -> Device:
        read_only = request.read_only or request.publish_context.get("readOnly") == "true"
        return self._devices.open(request.handle, request.publish_context, read_only=read_only)

    def find_device(self, handle: str) -> Device | None:
        return self._devices.find(handle)

    def close_device(self, handle: str) -> None:
        self._devices.close(handle)

    def refresh_device(self, handle: str) -> None:
        self._devices.refresh(handle)
