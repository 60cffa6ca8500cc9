"""The contract between the core and a storage backend. Read this first.

A backend is a class that derives from `Backend` and from one class per optional feature, registered
under the entry point group `csi_multi.backends`. It speaks its storage system and tells the truth:
NotFound when asked to delete nothing, AlreadyExists when the name is taken. What the orchestrator
calls success is the core's business (idempotent.py), as are gRPC, ids, locks, validation, mkfs and
mount. Which CSI capabilities follow from which feature stands in rpc/capabilities.py.

Rules for every method:
- Failures are raised from errors.py; the class decides what the orchestrator does next.
- Names and handles are compared byte for byte. Volumes, snapshots and groups each have names of
  their own, and the handle of one kind is not found as another.
- Secrets end with the call: never in a stamp, in the text of an error, or among a command's words.
- Anything may be killed at any point. Creation is atomic, or the retry recognises what is half-made
  and finishes or removes it. State lives on the resource (model.Stamp), never in memory.
- The core calls only with what it has checked: a capability that `unsupported` allows, and for a
  NodeLocal backend a place that its node lies in. A backend need not check these again.
- Within a process, calls with one id, or creations with one name, never overlap; all others may. One
  exception: a volume may be expanded and modified at once, so that one storage call can do both.
  Another process may be at work on the same storage: a controller that is being replaced, or
  controller and node on one machine.
- Constructors do no I/O, so that a storage system that is down degrades its own instance only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from .dry_run import DryRunReport
from .errors import FailedPrecondition, NotFound
from .machine import Host
from .model import (
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
    Stamp,
    StorageHealthEntry,
    Strings,
    Volume,
    VolumeHealth,
    VolumeRequest,
)
from .observer import UNOBSERVED, Observer
from .params import Schema

CONTRACT = (1, 0)  # major: breaking; minor: new optional classes and defaulted fields only
GROUP = "csi_multi.backends"  # entry point group


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where an instance lives: given to every constructor beside its own configuration.

    Work on the storage as a whole, in the background, is for processes that serve the controller: there
    may be a thousand nodes. What asks the storage in another way than by `host` says so, for metrics and traces:
    `with setting.observe("ec2", "CreateVolume"):`.
    """

    instance: str
    driver: str
    cluster: str
    node: str
    host: Host
    controller: bool = True
    observe: Observer = UNOBSERVED


class Backend(ABC):
    """What every backend has."""

    contract: ClassVar[tuple[int, int]]  # the CONTRACT the backend was written for, as literals
    Config: ClassVar[type[Schema]] = Schema  # its part of the YAML file
    Parameters: ClassVar[type[Schema]] = Schema  # StorageClass parameters
    MutableParameters: ClassVar[type[Schema]] = Schema  # VolumeAttributesClass parameters
    SnapshotParameters: ClassVar[type[Schema]] = Schema  # VolumeSnapshotClass parameters
    GroupSnapshotParameters: ClassVar[type[Schema]] = Schema  # VolumeGroupSnapshotClass parameters
    access_modes: ClassVar[frozenset[AccessMode]] = SINGLE_NODE_MODES

    def __init__(self, config: Any, setting: Setting) -> None:
        """Keep the validated `Config` and the setting. No I/O here."""
        self.config = config
        self.setting = setting

    @abstractmethod
    def create_volume(self, request: VolumeRequest) -> Volume:
        """Make an empty volume and store request.stamp on it.

        Raises AlreadyExists when the name is taken, OutOfRange, ResourceExhausted when full or when
        no requested topology can hold it, InvalidArgument for parameters that exclude each other. A storage
        system that knows repeated requests by a token may answer one with the volume it made before.
        """

    @abstractmethod
    def find_volume(self, name: str) -> Volume:
        """Return the volume made for this requested name. Raises NotFound."""

    @abstractmethod
    def get_volume(self, handle: str) -> Volume:
        """Return the volume. Raises NotFound, also for a handle this backend never made."""

    @abstractmethod
    def delete_volume(self, handle: str, secrets: Strings) -> None:
        """Remove the volume and its data. Snapshots of it stay usable, or it raises InUse.

        Raises NotFound; InUse while it is attached or its device is open; FailedPrecondition for what
        does not carry our stamp. What is half removed may be invisible, but its deletion finishes it.
        """

    @abstractmethod
    def open_device(self, request: OpenRequest) -> Device:
        """Make the volume's device appear on this node, or find it there already. Raises NotFound."""

    @abstractmethod
    def find_device(self, handle: str) -> Device | None:
        """Return the device if it is open on this node, changing nothing and needing no controller.

        Raises NotFound when the volume is known not to exist; None when it is just not open here.
        """

    @abstractmethod
    def close_device(self, handle: str) -> None:
        """Make the device disappear from this node. Nothing there is fine, no volume too. Raises InUse."""

    def formatting(self, handle: str) -> None:  # noqa: B027 - optional on purpose
        """Note on the resource that mkfs is about to run on a blank device (Blank.INTERRUPTED).

        Required with Blank.STAMPED. A backend whose new volumes read as zeros may leave both notes out;
        then a mkfs that was killed half-way needs a person. Raises FailedPrecondition after `formatted`.
        """

    def formatted(self, handle: str) -> None:  # noqa: B027
        """Note on the resource that it may hold data from now on (Blank.NEVER): for ever. May come twice."""

    def unsupported(self, capability: Capability, parameters: Any = None) -> str:
        """Why a volume (with these Parameters, when known) cannot be used like this; "" if it can."""
        if capability.mode not in self.access_modes:
            return f"access mode {capability.mode.name} is not supported"
        return ""

    def check(self) -> None:  # noqa: B027
        """Raise Unavailable when the storage system cannot be used now. Called now and then."""

    def resume(self) -> None:  # noqa: B027
        """Finish work whose intent an earlier process left on a resource. Called once per start."""

    def close(self) -> None:  # noqa: B027
        """Release what the instance holds. Called at shutdown."""


class Topology(Backend):
    """Volumes are reachable from some nodes only, and say so in Volume.topology."""

    everywhere: bool = False  # set by an instance that is configured without places: as if it were no Topology

    @abstractmethod
    def node_segments(self) -> Segments:
        """Return the segments this node offers, for example {"zone": "eu-west-1a"}.

        Keys and values have 1 to 63 of [-_.A-Za-z0-9] with a letter or digit at both ends, keys in
        lower case; a key "node" holds the node's name (csi-spec Topology).
        """


class NodeLocal(Backend):
    """Volumes live on one node: the core adds the segment {"node": name} by itself.

    Every method raises WrongNode for a handle of another node, never NotFound: to the orchestrator a
    volume that is not found is gone, and it would be forgotten where it really is.
    """

    @abstractmethod
    def node_of(self, handle: str) -> str:
        """Return the node's name, which every handle starts with. Raises NotFound. No I/O."""


class NodeFacts(Backend):
    """The controller must know something about a node that only the node can tell."""

    @abstractmethod
    def node_fact(self) -> str:
        """Return the fact to store in node_id, for example an instance id. Letters, digits, -_.:

        Raises FailedPrecondition where the instance's volumes can never be used on this node, which then
        serves the other instances only (so may node_segments and max_volumes); Unavailable: ask again.
        """

    def max_volumes(self) -> int:
        """Return how many volumes of this instance fit on this node; 0: no limit known."""
        return 0


class Attach(Backend):
    """A volume must be attached to a node before the node can open its device."""

    @abstractmethod
    def attach(self, request: AttachRequest) -> Strings:
        """Attach and return the publish context. Attached there already is fine.

        Raises NotFound for volume or node, FailedPrecondition naming the node it is attached to,
        AlreadyExists when attached there in an incompatible way, ResourceExhausted for a full node.
        """

    @abstractmethod
    def detach(self, handle: str, node: Node | None, secrets: Strings) -> None:
        """Detach from the node (None: from all). Raises NotFound when nothing is attached there."""


class ReadOnlyAttach(Attach):
    """A promise: attach honours AttachRequest.read_only."""


class PublishedNodes(Attach):
    """A promise about values: get_volume and list_volumes always fill Volume.published_nodes."""


class Expand(Backend):
    """Volumes can grow."""

    online: ClassVar[bool] = True  # also while published

    @abstractmethod
    def expand_volume(self, request: ExpandRequest) -> Expansion:
        """Grow to request.size; large enough already is fine, never shrink.

        Raises NotFound, OutOfRange, ResourceExhausted, FailedPrecondition when in use but not online.
        """

    def refresh_device(self, handle: str) -> None:
        """Make an open device on this node show the volume's new size."""


class Snapshots(Backend):
    """Volumes can be snapshotted, and snapshots turned into volumes."""

    @abstractmethod
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Cut a snapshot of one point in time. Raises AlreadyExists when the name is taken, NotFound for
        the source, ResourceExhausted, and InUse when a source that is in use cannot be cut like this.
        """

    @abstractmethod
    def find_snapshot(self, name: str) -> Snapshot:
        """Return the snapshot made for this requested name. Raises NotFound."""

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

        Also raises OutOfRange for less than the source, and for more if a copy cannot grow.
        """


class Clone(Backend):
    """A volume can start as a copy of another volume."""

    @abstractmethod
    def clone_volume(self, request: VolumeRequest) -> Volume:
        """Like create_volume, with the data of the volume in request.source. Raises NotFound.

        Also raises OutOfRange as restore_volume does, and InUse when a source that is in use cannot be
        copied at one point in time. Without a wish for the size the source's is taken.
        """


class ListVolumes(Backend):
    @abstractmethod
    def list_volumes(self, page: PageRequest) -> Page[Volume]:
        """Return our own volumes in a stable order. Raises InvalidToken for a foreign cursor."""


class ListSnapshots(Snapshots):
    @abstractmethod
    def list_snapshots(self, page: PageRequest, source: str | None = None) -> Page[Snapshot]:
        """Return our own snapshots, of one volume handle if given; of an unknown one: none. Raises InvalidToken."""


class Capacity(Backend):
    @abstractmethod
    def capacity(self, request: CapacityRequest) -> CapacityReport:
        """Return what could be created now under these conditions; segments it cannot serve: 0 bytes.

        What may be promised beyond the space that is there is part of it; a volume larger than
        `maximum` (None: `available`) is refused.
        """


class Modify(Backend):
    """Volumes have parameters that can change later. Every field of MutableParameters defaults to None: unset."""

    @abstractmethod
    def modify_volume(self, request: ModifyRequest) -> None:
        """Change what is set in request.mutable, all or nothing. Raises NotFound, InvalidArgument."""


class GroupSnapshots(Snapshots):
    """Several volumes can be snapshotted at one point in time."""

    @abstractmethod
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Cut all or none. Raises AlreadyExists, NotFound, FailedPrecondition for unfit volumes."""

    @abstractmethod
    def find_group_snapshot(self, name: str) -> GroupSnapshot:
        """Return the group made for this requested name. Raises NotFound."""

    @abstractmethod
    def get_group_snapshot(self, handle: str) -> GroupSnapshot:
        """Return the group with all members. Raises NotFound."""

    @abstractmethod
    def delete_group_snapshot(self, handle: str, secrets: Strings) -> None:
        """Remove the group and all members. Raises NotFound, InUse."""


class ChangedBlocks(Snapshots):
    """Backup programs can ask which blocks of a snapshot hold data, or differ from an older one."""

    @abstractmethod
    def allocated_blocks(self, handle: str, offset: int, secrets: Strings) -> BlockMap:
        """Raises NotFound, OutOfRange for an offset beyond the end."""

    @abstractmethod
    def changed_blocks(self, base: str, target: str, offset: int, secrets: Strings) -> BlockMap:
        """Raises NotFound, OutOfRange, FailedPrecondition when changes are not tracked."""


class VolumeHealthReporter(Backend):
    """The storage system knows how its volumes are."""

    @abstractmethod
    def volume_health(self, handle: str, secrets: Strings) -> tuple[HealthEntry, ...]:
        """Return what is wrong now; empty: healthy. Raises NotFound."""


class VolumeHealthLister(VolumeHealthReporter):
    @abstractmethod
    def list_volume_health(self, page: PageRequest, secrets: Strings) -> Page[VolumeHealth]:
        """Return the unhealthy volumes only. Raises InvalidToken."""


class NodeHealthReporter(Backend):
    """The node can see trouble that the mount engine cannot."""

    @abstractmethod
    def node_volume_health(self, handle: str) -> tuple[HealthEntry, ...]:
        """Return what is wrong with the volume seen from this node. Raises NotFound."""

    @abstractmethod
    def node_storage_health(self, secrets: Strings) -> tuple[StorageHealthEntry, ...]:
        """Return what is wrong with the storage system seen from this node."""


class Explain(Backend):
    """`csi-multi explain` can tell what the creation of a volume would do. The driver itself never asks for that."""

    @abstractmethod
    def dry_run(self, report: DryRunReport) -> Backend:
        """Return a backend like this one that changes nothing, for one creation, and writes into `rehearsal`.

        It goes through its own code, over doors that note what changes something and do it not. It raises
        what a creation raises, and rehearsal.Unforeseen where it cannot know how that would go on.
        """


class Import(Explain):
    """`csi-multi import` can take over a volume that somebody made by hand. It is tried by `rehearsed` first.

    Such a volume has a stamp like any other, with `Stamp.imported`: delete_volume refuses it (`not_ours_to_delete`),
    and its device is never blank.
    """

    @abstractmethod
    def import_volume(self, name: str, stamp: Stamp) -> Volume:
        """Store the stamp on what has this name (a path, an id) in the storage, and return it as a volume.

        Its data is not touched. May be repeated from any point. Raises InvalidArgument for a name of another form,
        NotFound, AlreadyExists for what is ours or whose new name is taken, InUse, FailedPrecondition.
        """

    @abstractmethod
    def release_volume(self, handle: str) -> str:
        """Take the stamp off an imported volume again, and return the name it has then.

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

TOOLS: tuple[type[Backend], ...] = (Explain, Import)  # what commands for operators ask for, and never an RPC


def not_ours_to_delete(handle: str) -> FailedPrecondition:
    """The one wording for an imported volume that somebody wants deleted."""
    return FailedPrecondition(
        f"volume {handle!r} was there before this driver and is not deleted by it; to keep its data, or to delete it "
        "by hand, first release it with 'csi-multi import --release'"
    )


def not_imported(handle: str) -> FailedPrecondition:
    """The one wording for a volume that is to be released, and that the driver made."""
    return FailedPrecondition(
        f"volume {handle!r} was not imported, but made by this driver: delete it through the orchestrator"
    )


def missing(kind: str, handle: str) -> NotFound:
    """The one wording for a volume, snapshot or group that is not there."""
    return NotFound(f"{kind} {handle!r} does not exist")
