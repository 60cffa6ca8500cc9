"""The values of the backend contract: frozen, keyword-only, without protobuf.

Sizes are bytes. Handles are a backend's own ids; the core turns them into CSI ids and back
(ids.py). Segments are topology without the driver's prefix, for example {"zone": "a"}.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from .errors import OutOfRange

T = TypeVar("T")
Strings = Mapping[str, str]
Segments = Mapping[str, str]

NO_SECRETS: Strings = MappingProxyType({})  # of a caller that has none
UNLIMITED = 2**63 - 1  # bytes; the largest number of CSI, for "no known limit"


class AccessMode(enum.Enum):
    """CSI access modes by their number in csi.proto."""

    SINGLE_NODE_WRITER = 1
    SINGLE_NODE_READER_ONLY = 2
    MULTI_NODE_READER_ONLY = 3
    MULTI_NODE_SINGLE_WRITER = 4
    MULTI_NODE_MULTI_WRITER = 5
    SINGLE_NODE_SINGLE_WRITER = 6
    SINGLE_NODE_MULTI_WRITER = 7

    @property
    def single_node(self) -> bool:
        return self.name.startswith("SINGLE_NODE")

    @property
    def read_only(self) -> bool:
        return self.name.endswith("READER_ONLY")

    @property
    def many_targets(self) -> bool:
        """Whether one node may publish the volume at several targets (NodePublishVolume table)."""
        return not self.single_node or self is AccessMode.SINGLE_NODE_MULTI_WRITER

    @property
    def one_writer(self) -> bool:
        """Whether one target of a node may write and any others read: what "once as read/write" of CSI leaves open.

        Nomad, which knows no mode of its own for it, publishes a volume for a job that reads beside one that writes.
        """
        return self is AccessMode.SINGLE_NODE_WRITER


SINGLE_NODE_MODES = frozenset(mode for mode in AccessMode if mode.single_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Access through a filesystem. Flags may be sensitive, so they are not in repr and logs."""

    fs_type: str = ""
    flags: tuple[str, ...] = field(default=(), repr=False)
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """The requested use of a volume: an access mode, and a filesystem or (mount is None) raw block."""

    mode: AccessMode
    mount: Mount | None = None

    @property
    def block(self) -> bool:
        return self.mount is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """A requested size: at least `required`, at most `limit`; 0 means unset."""

    required: int = 0
    limit: int = 0
    least: int = 0  # what the volume's filesystem needs, where nothing is required: a smaller default is raised to it

    def holds(self, size: int) -> bool:
        return size >= self.required and (not self.limit or size <= self.limit)

    def choose(self, *, granularity: int = 1, minimum: int = 1, maximum: int = 0, default: int = 0) -> int:
        """Return the smallest size in the range that a backend can create.

        `granularity`, `minimum`, `maximum` (0: none) describe the backend; `default` is the size when
        the caller requires none. Raises OutOfRange when no size fits (csi-spec CreateVolume, 11).
        """
        wanted = max(self.required or min(default, self.limit or default), self.least, minimum)
        size = -(-wanted // granularity) * granularity
        if maximum and size > maximum:
            raise OutOfRange(f"{wanted} bytes is above the maximum of {maximum} bytes")
        if self.limit and size > self.limit:
            raise OutOfRange(
                f"no size between {self.required} and {self.limit} bytes is possible; "
                f"sizes are multiples of {granularity} bytes and at least {minimum} bytes"
            )
        return size


class SourceKind(enum.Enum):
    SNAPSHOT = "snapshot"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The snapshot or volume, of the same backend instance, that a new volume is a copy of."""

    kind: SourceKind
    handle: str


IMPORTED = "imported"  # the digest of a volume that the driver did not create


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a backend stores on the resource, so that no other state is needed; at most 2 KiB in all.

    The backend stores it with the volume or snapshot and returns it unchanged. `name` is the name in the
    orchestrator's request, `digest` a hash of all parameters of the request, and `context` the
    volume context that every later response must repeat (csi-spec 2.2: it never changes).
    """

    driver: str
    cluster: str
    name: str
    digest: str
    source: Source | None = None
    context: Strings = field(default_factory=dict)

    @property
    def imported(self) -> bool:
        """Whether the volume was imported; then the driver never deletes it, and it is never blank."""
        return self.digest == IMPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequirement:
    """Where a volume must be reachable (one of requisite) and where preferably (in order)."""

    requisite: tuple[Segments, ...] = ()
    preferred: tuple[Segments, ...] = ()

    @property
    def candidates(self) -> tuple[Segments, ...]:
        """All segments, the preferred ones first, each once."""
        unique: list[Segments] = []
        for segments in (*self.preferred, *self.requisite):
            if segments not in unique:
                unique.append(segments)
        return tuple(unique)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest:
    """CreateVolume. `parameters` and `mutable` are instances of the backend's own schemas.

    `metadata` is for operators of the storage. It may contain any text; a value that is not possible in the
    storage's tags is changed or omitted, and never an error.
    """

    stamp: Stamp
    size: SizeRange = SizeRange()
    capabilities: tuple[Capability, ...] = ()
    parameters: Any = None
    mutable: Any = None
    topology: TopologyRequirement | None = None
    metadata: Strings = field(default_factory=dict)  # PVC name and namespace, PV name: for tags
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None  # time.monotonic() at which the caller stops waiting
    largest_sector: int = 0  # bytes of a block of the new filesystem, which mkfs refuses on larger sectors; 0: any

    @property
    def name(self) -> str:
        return self.stamp.name

    @property
    def source(self) -> Source | None:
        return self.stamp.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume as the storage system reports it; its device has exactly `size` bytes.

    Empty topology: reachable from all nodes.
    """

    handle: str
    size: int
    stamp: Stamp
    topology: tuple[Segments, ...] = ()
    published_nodes: tuple[str, ...] = ()  # Node.id of each; only with the PublishedNodes feature
    # Other names of the places in `topology`, which a request may use in their stead, for example a zone's id (1.1).
    # They count only where find_volume follows a creation; what else a backend knows of them may differ.
    topology_aliases: tuple[Segments, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """CreateSnapshot. `parameters` is an instance of the backend's SnapshotParameters.

    `source` is the volume, and the backend stores it as well; the stamp's own `source` is empty.
    """

    stamp: Stamp
    source: str  # volume handle
    parameters: Any = None
    topology: TopologyRequirement | None = None
    metadata: Strings = field(default_factory=dict)
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None

    @property
    def name(self) -> str:
        return self.stamp.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot. `size` is the size of the smallest volume it can be restored to; `created` never changes."""

    handle: str
    source: str  # volume handle, also after the volume is deleted; `ids.earlier` once another volume has that handle
    size: int
    created: datetime  # timezone-aware
    stamp: Stamp
    ready: bool = True
    group: str = ""  # group snapshot handle
    topology: tuple[Segments, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshotRequest:
    """CreateVolumeGroupSnapshot: snapshots of all sources at one point in time, or none."""

    stamp: Stamp
    sources: tuple[str, ...]  # volume handles
    parameters: Any = None
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """Snapshots that were created at one point in time: `created`, and the owner in the stamp, are those of each."""

    handle: str
    snapshots: tuple[Snapshot, ...]
    created: datetime
    stamp: Stamp

    @property
    def ready(self) -> bool:
        return all(snapshot.ready for snapshot in self.snapshots)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandRequest:
    """ControllerExpandVolume."""

    handle: str
    size: SizeRange
    capability: Capability | None = None
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The size after an expansion, and whether NodeExpandVolume must follow."""

    size: int
    node_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyRequest:
    """ControllerModifyVolume: `mutable` contains the changes; unset fields stay unchanged."""

    handle: str
    mutable: Any
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One page of a listing: items after `cursor` ("" for the start), at most `limit` (0: no limit)."""

    cursor: str = ""
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """`cursor` continues after the last item, even if that is deleted; "" at the end."""

    items: tuple[T, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """GetCapacity. None or empty: no condition."""

    capabilities: tuple[Capability, ...] = ()
    parameters: Any = None
    segments: Segments | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReport:
    """What can be created. `available` is UNLIMITED where no limit is known."""

    available: int
    maximum: int | None = None  # largest single volume; what is above `available` does not count
    minimum: int | None = None  # smallest single volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node, read from its node_id: its name, and the fact that this instance stored there, if any.

    `id` is the node_id itself: a PublishedNodes backend stores it on the volume to report it later. It changes with the
    driver's instances, also while volumes are attached: compare nodes by their name or fact.
    """

    name: str
    fact: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """ControllerPublishVolume."""

    handle: str
    node: Node
    capability: Capability
    read_only: bool = False
    context: Strings = field(default_factory=dict)
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


class Health(enum.Enum):
    """Kinds of volume problems; names and numbers are those of VolumeHealthErrorType in csi.proto."""

    DEGRADED = 1
    INACCESSIBLE = 2
    DATA_LOSS = 3


class StorageHealth(enum.Enum):
    """Kinds of storage problems; names and numbers are those of StorageHealthErrorType in csi.proto."""

    STORAGE_DEGRADED = 1
    STORAGE_UNREACHABLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEntry:
    """One abnormal condition of a volume; `reason` is a CamelCase word, unique with its status."""

    status: Health
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeHealth:
    """The problems of one volume."""

    handle: str
    entries: tuple[HealthEntry, ...] = ()  # empty: healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageHealthEntry:
    """One problem of the storage system."""

    status: StorageHealth
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A range of bytes."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """Allocated or changed extents, in strictly increasing order; `size` is the volume's at the time of the snapshot.

    `block_size` is the length of every extent, or 0 when lengths vary. Extents that end at or before
    the requested offset are omitted. The iterator raises when it cannot continue; it never ends early.
    """

    size: int
    extents: Iterator[Extent]
    block_size: int = 0


class Blank(enum.Enum):
    """How to prove that a device without a signature holds no data (node/format.py).

    NEVER: it was used (`formatted`) or is a copy (clone, restore, import), so it is never formatted.
    ZEROED: a note on the resource says that it was never used, and an unused device reads as zeros; the engine reads
        it as well.
    STAMPED: the storage does not write zeros, but a stamp on the resource says that it was never used.
    INTERRUPTED: a stamp says that formatting of a blank device began and did not finish, so its
        content is that of an interrupted mkfs and no data.
    """

    NEVER = "never"
    ZEROED = "zeroed"
    STAMPED = "stamped"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A block device on this node, with the proof that it is the right one.

    `number` is "major:minor". `proof` maps attribute files below /sys/dev/block/<number>/ to the
    text they must hold, for example {"loop/backing_file": "/srv/v1/image"}, {"dm/uuid": "LVM-..."},
    {"device/serial": "vol0abc"}. It is never empty, and differs for every volume. The engine checks it
    immediately before it formats, mounts or binds the device.
    """

    path: Path
    number: str
    proof: Strings
    blank: Blank
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """Open a volume's device on this node.

    With `read_only` the device itself must refuse writes (blockdev --setro is enough), and Device.read_only
    is True.
    """

    handle: str
    read_only: bool = False
    block: bool = False
    capability: Capability | None = None  # the requested use, where the caller gives it
    volume_context: Strings = field(default_factory=dict)
    publish_context: Strings = field(default_factory=dict)
    secrets: Strings = field(default_factory=dict, repr=False)
