"""The contract between the core and a storage backend. Read this first.

A backend is a class that derives from `Backend` and from one class per optional feature, registered
under the entry point group `csi_multi.backends`. It talks to its storage system and reports what it finds:
NotFound when there is nothing to delete, AlreadyExists when the name is taken. The core decides what
that means for the orchestrator (core/idempotent.py), and does gRPC, ids, locks, validation, mkfs and
mount. rpc/capabilities.py lists which CSI capabilities follow from which feature.

Rules for every method:
- Failures are raised from errors.py; the class decides what the orchestrator does next.
- Names and handles are compared byte for byte. Volumes, snapshots and groups have separate names,
  and the handle of one kind is not found as another kind.
- Secrets end with the call: they are never in a stamp, an error text or the arguments of a command.
- The process may be killed at any point. A creation is atomic, or its retry recognises the incomplete
  resource and finishes or removes it. State is stored on the resource (model.Stamp), never in memory.
- The core checks before it calls: a capability by `unsupported`, and for a NodeLocal backend that the
  requested topology contains its node. A backend need not check these again.
- Within a process, calls with the same id, or creations with the same name, never overlap; all others may. One
  exception: a volume may be expanded and modified at the same time, so that one storage call can do both.
  Another process may work on the same storage: a controller that is being replaced, or
  controller and node on one machine.
- Constructors do no I/O, so a storage system that is down degrades only its own instance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from .dry_run import DryRunReport
from .errors import FailedPrecondition, NotFound
from .metrics import Metric
from .model import (
    NO_SECRETS,
    SINGLE_NODE_MODES,
    AccessMode,
    AttachRequest,
    BlockMap,
    Capability,
    CapacityReport,
    CapacityRequest,
    Device,
    ExpandRequest,
    Expansion,
    GroupSnapshot,
    GroupSnapshotRequest,
    HealthEntry,
    ModifyRequest,
    Node,
    OpenRequest,
    Page,
    PageRequest,
    Segments,
    Snapshot,
    SnapshotRequest,
    Source,
    SourceKind,
    Stamp,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeHealth,
    VolumeRequest,
)
from .params import Schema
from .setting import Setting as Setting

CONTRACT = (1, 1)  # major: breaking; minor: new optional classes and defaulted fields only
GROUP = "csi_multi.backends"  # entry point group


class Backend(ABC):
    """The methods that every backend has."""

    contract: ClassVar[tuple[int, int]]  # the CONTRACT the backend was written for, as literals
    Config: ClassVar[type[Schema]] = Schema  # its section of the YAML file
    Parameters: ClassVar[type[Schema]] = Schema  # StorageClass parameters
    MutableParameters: ClassVar[type[Schema]] = Schema  # VolumeAttributesClass parameters
    SnapshotParameters: ClassVar[type[Schema]] = Schema  # VolumeSnapshotClass parameters
    GroupSnapshotParameters: ClassVar[type[Schema]] = Schema  # VolumeGroupSnapshotClass parameters
    access_modes: ClassVar[frozenset[AccessMode]] = SINGLE_NODE_MODES
    # Whether open_device for a single-node mode fails while another node has the volume open, by the storage's means:
    # a lock, a lease, a record of the holder. It is for backends without Attach, where no controller sees to that.
    opens_exclusively: ClassVar[bool] = False
    # Whether `check` does nothing but ask whether the storage answers. Then it is left out while RPCs succeed, and
    # called every few minutes while there are none. One that also does work is called every driver.check_seconds.
    check_only_asks: ClassVar[bool] = False

    def __init__(self, config: Any, setting: Setting) -> None:
        """Keep the validated `Config` and the setting. No I/O here."""
        self.config = config
        self.setting = setting

    @abstractmethod
    def create_volume(self, request: VolumeRequest) -> Volume:
        """Create an empty volume and store request.stamp on it.

        Raises AlreadyExists when the name is taken, OutOfRange, ResourceExhausted when the storage is full or
        cannot serve the requested topology, InvalidArgument for parameters that exclude each other. A storage
        system that recognises repeated requests by a token may return the volume that it created before.
        Another request may delete the volume as soon as it exists: do not read it again to return it.
        """

    @abstractmethod
    def find_volume(self, name: str) -> Volume:
        """Return the volume that was created with this requested name. Raises NotFound."""

    @abstractmethod
    def get_volume(self, handle: str) -> Volume:
        """Return the volume. Raises NotFound, also for a handle that this backend never returned."""

    @abstractmethod
    def delete_volume(self, handle: str, secrets: Strings) -> None:
        """Delete the volume and its data. Its snapshots stay usable; where that is impossible it raises InUse.

        Raises NotFound; InUse while it is attached or its device is open; FailedPrecondition for a volume
        without our stamp. A partly deleted volume may be invisible, but another call finishes its deletion.
        """

    @abstractmethod
    def open_device(self, request: OpenRequest) -> Device:
        """Open the volume's device on this node, or return the one that is open already.

        Raises NotFound, and with Attach FailedPrecondition for a volume that is not attached to this node. Where it
        cannot be read what Device.blank depends on, it raises Unavailable, or answers Blank.NEVER.
        """

    # Since 1.1 these methods get the secrets of the RPC that needs them. Of an RPC without secrets in CSI (unpublish,
    # unstage, statistics, health) they are empty, and find_device and close_device must work without them.

    @abstractmethod
    def find_device(self, handle: str, secrets: Strings = NO_SECRETS) -> Device | None:
        """Return the device if it is open on this node. Changes nothing, and needs no controller.

        Returns None when it is not open here; raises NotFound when the volume is known not to exist.
        """

    @abstractmethod
    def close_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """Close the device on this node. Succeeds when it is not open or the volume does not exist.

        Raises InUse, and Unavailable where the storage must be told and does not answer.
        """

    def formatting(self, handle: str, secrets: Strings = NO_SECRETS) -> None:  # noqa: B027 - optional on purpose
        """Store on the resource that mkfs is about to run on a blank device (Blank.INTERRUPTED).

        The kit requires both methods of every backend with devices, also where new volumes read as zeros: data may
        begin anywhere, so reads do not tell a used volume from a new one. Raises FailedPrecondition after `formatted`.
        """

    def formatted(self, handle: str, secrets: Strings = NO_SECRETS) -> None:  # noqa: B027
        """Store on the resource that it may hold data from now on (Blank.NEVER), for ever. May be called twice."""

    def has_data(self, handle: str, secrets: Strings = NO_SECRETS) -> bool | None:
        """Return whether the storage knows that something was written to the volume since it was made.

        False: every block is still unwritten (no allocated extent, no mapped thin block, no object). None: the
        storage does not know. Called on the node while the device is open and not mounted, before mkfs and only then;
        it must be cheap, and needs no controller.
        """
        return None

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        """Return why a volume (of these Parameters, when known) does not support the capability; "" if it does."""
        if capability.mode not in self.access_modes:
            return f"access mode {capability.mode.name} is not supported"
        return ""

    def source_stamp(self, source: Source) -> Stamp:
        """Return the stamp of the volume or snapshot that is about to be copied (since 1.1). Raises NotFound.

        For a backend that can read it with less work than all of a Volume or Snapshot takes.
        """
        if source.kind is SourceKind.VOLUME:
            return self.get_volume(source.handle).stamp
        if isinstance(self, Snapshots):
            return self.get_snapshot(source.handle).stamp
        raise NotFound(f"snapshot {source.handle!r} does not exist: this backend has no snapshots")

    def check(self) -> None:  # noqa: B027
        """Raise Unavailable when the storage system cannot be used now. Called at an interval (check_only_asks)."""

    def metrics(self, opened: tuple[str, ...]) -> tuple[Metric, ...]:
        """Return what this backend alone can measure, for Prometheus (since 1.1). Never called without driver.metrics.

        `opened`: the handles of the volumes that are open on this node. Called at every scrape, in a thread of its own,
        while RPCs run; after a second the scrape goes on without it. So it answers from memory and from this machine,
        and calls no storage over a network.
        """
        return ()

    def resume(self) -> None:  # noqa: B027
        """Finish work that an earlier process has recorded on a resource. Called once per start."""

    def close(self) -> None:  # noqa: B027
        """Release connections and files of the instance. Called at shutdown."""


class Topology(Backend):
    """Volumes are reachable from some nodes only; Volume.topology lists their segments."""

    everywhere: bool = False  # set by an instance without configured segments, which counts as one without Topology
    # Set by an instance whose segment "zone" ("region", "zone-id") has the values of the node label for it, such as
    # topology.kubernetes.io/zone. Then nodes report that label's key, too, and volumes this key alone (since 1.1).
    well_known_keys: bool = False

    @abstractmethod
    def node_segments(self) -> Segments:
        """Return the segments of this node, for example {"zone": "eu-west-1a"}.

        Keys and values have 1 to 63 of [-_.A-Za-z0-9] with a letter or digit at both ends, keys in
        lower case; a key "node" holds the node's name (csi-spec Topology).
        """


class NodeLocal(Backend):
    """Each volume is on one node; the core adds the segment {"node": name} itself.

    Every method raises WrongNode for a handle of another node, never NotFound: the orchestrator takes a
    volume that is not found for deleted, and would forget it.
    """

    @abstractmethod
    def node_of(self, handle: str) -> str:
        """Return the node's name, with which every handle starts. Raises NotFound. No I/O."""


class NodeFacts(Backend):
    """The controller needs a fact about each node that only the node can find out."""

    @abstractmethod
    def node_fact(self) -> str:
        """Return the fact to store in node_id, for example an instance id; letters, digits and -_.: are allowed.

        Raises FailedPrecondition where the instance's volumes can never be used on this node, which then serves the
        other instances only (node_segments and max_volumes may do so too); Unavailable to be called again.
        """

    def max_volumes(self) -> int:
        """Return how many volumes of this instance this node can have; 0: no known limit."""
        return 0


class Attach(Backend):
    """A volume must be attached to a node before the node can open its device."""

    @abstractmethod
    def attach(self, request: AttachRequest) -> Strings:
        """Attach the volume and return the publish context. Succeeds when it is attached there already.

        Raises NotFound for volume or node, FailedPrecondition with the name of another node that has it,
        AlreadyExists when it is attached there in an incompatible way, ResourceExhausted for a full node.
        """

    @abstractmethod
    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        """Detach from the node (None: from all). Raises NotFound when nothing is attached there."""


class ReadOnlyAttach(Attach):
    """Without methods of its own. Declares that attach applies AttachRequest.read_only."""


class PublishedNodes(Attach):
    """Without methods of its own. Declares that get_volume and list_volumes always fill Volume.published_nodes."""


class Expand(Backend):
    """Volumes can be expanded."""

    online: ClassVar[bool] = True  # also while published
    offline: ClassVar[bool] = True  # also while it is attached nowhere; False needs Attach (since 1.1)

    @abstractmethod
    def expand_volume(self, request: ExpandRequest) -> Expansion:
        """Expand to request.size; a volume that is large enough stays as it is, and none shrinks.

        Raises NotFound, OutOfRange, ResourceExhausted; InUse for a volume that cannot grow while it is in use, and
        FailedPrecondition, never InUse, for one that grows only while it is attached and is not: then it is tried
        again every few minutes, also after a pod has begun to use the volume.
        """

    def refresh_device(self, handle: str, secrets: Strings = NO_SECRETS) -> None:
        """Update the size of an open device on this node after an expansion."""


class Snapshots(Backend):
    """Volumes can have snapshots, and snapshots can be restored to new volumes."""

    @abstractmethod
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Create a snapshot of one point in time.

        Raises AlreadyExists when the name is taken, NotFound for the source, ResourceExhausted, and InUse when
        the source is in use and no consistent snapshot of it is possible.
        """

    @abstractmethod
    def find_snapshot(self, name: str) -> Snapshot:
        """Return the snapshot that was created with this requested name. Raises NotFound."""

    @abstractmethod
    def get_snapshot(self, handle: str) -> Snapshot:
        """Return the snapshot, ready or not. Raises NotFound."""

    @abstractmethod
    def delete_snapshot(self, handle: str, secrets: Strings) -> None:
        """Remove the snapshot, complete or not.

        Raises NotFound, InUse when something depends on it, and InvalidArgument for a member of a group
        (Snapshot.group), which is deleted with its group only.
        """

    @abstractmethod
    def restore_volume(self, request: VolumeRequest) -> Volume:
        """Like create_volume, with the data of the snapshot in request.source. Raises NotFound.

        Also raises OutOfRange for a size below the source's, and above it where a copy cannot be expanded.
        """


class Clone(Backend):
    """A volume can start as a copy of another volume."""

    @abstractmethod
    def clone_volume(self, request: VolumeRequest) -> Volume:
        """Like create_volume, with the data of the volume in request.source. Raises NotFound.

        Also raises OutOfRange as restore_volume does, and InUse when the source is in use and cannot be
        copied at one point in time. A request without a size gets the source's.
        """


class ListVolumes(Backend):
    """Volumes can be listed."""

    @abstractmethod
    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        """Return our own volumes in a stable order. Raises InvalidToken for an unknown cursor."""


class ListSnapshots(Snapshots):
    """Snapshots can be listed."""

    @abstractmethod
    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        """Return our own snapshots, only those of a volume handle if given (unknown: none). Raises InvalidToken."""


class Capacity(Backend):
    """The free capacity is known."""

    @abstractmethod
    def capacity(self, request: CapacityRequest) -> CapacityReport:
        """Return what can be created now under these conditions; 0 bytes for segments that it cannot serve.

        Overcommitted space counts; a volume larger than `maximum` (None: `available`) is refused.
        """


class Modify(Backend):
    """Volumes have parameters that can be changed later. Every field of MutableParameters defaults to None: unset.

    A field that allows RESET gets the storage's default again, not the StorageClass's (params.Reset).
    """

    @abstractmethod
    def modify_volume(self, request: ModifyRequest) -> None:
        """Change the fields that are set in request.mutable, all or none. Raises NotFound, InvalidArgument."""

    def unmodifiable(self, handle: str, mutable: Any) -> str:
        """Return why modify_volume would refuse these MutableParameters for the volume; "" if it would not.

        Changes nothing. ValidateVolumeCapabilities confirms only what has no reason. Raises NotFound.
        """
        return ""


class GroupSnapshots(Snapshots):
    """Snapshots of several volumes can be taken at one point in time."""

    @abstractmethod
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Create all snapshots or none. Raises AlreadyExists, NotFound, FailedPrecondition for unsuitable volumes."""

    @abstractmethod
    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        """Return the group that was created with this requested name. Raises NotFound."""

    @abstractmethod
    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        """Return the group with all members. Raises NotFound."""

    @abstractmethod
    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        """Delete the group and all members. Raises NotFound, InUse."""


class ChangedBlocks(Snapshots):
    """Backup programs can read which blocks of a snapshot hold data, or differ from an older snapshot."""

    @abstractmethod
    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        """Return the blocks that hold data. Raises NotFound, OutOfRange for an offset beyond the end."""

    @abstractmethod
    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        """Return the blocks that differ. Raises NotFound, OutOfRange, FailedPrecondition for untracked changes."""


class VolumeHealthReporter(Backend):
    """The storage system knows the health of its volumes."""

    @abstractmethod
    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        """Return the present problems; empty: healthy. Raises NotFound."""


class VolumeHealthLister(VolumeHealthReporter):
    """Unhealthy volumes can be listed."""

    @abstractmethod
    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        """Return the unhealthy volumes only. Raises InvalidToken."""


class NodeHealthReporter(Backend):
    """The node can detect problems that the mount engine cannot."""

    @abstractmethod
    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        """Return the problems of the volume on this node. Raises NotFound."""

    @abstractmethod
    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        """Return the problems of the storage system as seen from this node."""


class Explain(Backend):
    """`csi-multi explain` can show what the creation of a volume would do. No RPC uses this feature."""

    @abstractmethod
    def dry_run(self, report: DryRunReport) -> Backend:
        """Return a backend like this one that changes nothing and records its steps in `report`, for one creation.

        It runs its usual code, with a client or host that records changes instead of making them. It raises
        the errors of a creation, and Unpredictable where the next steps depend on an earlier result.
        """


class Import(Explain):
    """`csi-multi import` can take over a volume that was created by hand. `dry_run` shows the steps first.

    Such a volume has a stamp with `Stamp.imported`: delete_volume refuses it (`not_ours_to_delete`),
    and its device is never blank.
    """

    @abstractmethod
    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        """Store the stamp on the resource with this name (a path, an id) in the storage, and return it as a volume.

        Its data is not changed. The same call can be repeated, and returns the volume also when it was complete. Raises
        InvalidArgument for a name of another form, NotFound, AlreadyExists for a volume with another stamp of ours or a
        taken name, InUse, FailedPrecondition.
        """

    @abstractmethod
    def release_volume(self, handle: str) -> str:
        """Remove the stamp of an imported volume; it can be imported again by the name that it had before.

        Returns a text for people, in one line: what the volume is now, for example "logical volume vg0/data".
        Raises NotFound, InUse while it is attached or open, FailedPrecondition for one that was not imported.
        """


FEATURES: tuple[type[Backend], ...] = (
    Topology,
    NodeLocal,
    NodeFacts,
    Attach,
    ReadOnlyAttach,
    PublishedNodes,
    Expand,
    Snapshots,
    Clone,
    ListVolumes,
    ListSnapshots,
    Capacity,
    Modify,
    GroupSnapshots,
    ChangedBlocks,
    VolumeHealthReporter,
    VolumeHealthLister,
    NodeHealthReporter,
)

TOOLS: tuple[type[Backend], ...] = (Explain, Import)  # for commands of operators; no RPC uses them


def not_ours_to_delete(handle: str) -> FailedPrecondition:
    """Return the error for the deletion of an imported volume."""
    return FailedPrecondition(
        f"volume {handle!r} was imported, and this driver does not delete imported volumes; to delete it by hand, "
        "release it first with 'csi-multi import --release'"
    )


def not_imported(handle: str) -> FailedPrecondition:
    """Return the error for the release of a volume that this driver created."""
    return FailedPrecondition(
        f"volume {handle!r} was created by this driver and not imported; delete it through the orchestrator"
    )


def missing(kind: str, handle: str) -> NotFound:
    """Return the error for a volume, snapshot or group that does not exist."""
    return NotFound(f"{kind} {handle!r} does not exist")
