"""The values that cross the backend contract: frozen, keyword-only, free of protobuf.

Sizes are bytes. Handles are a backend's own ids; the core turns them into CSI ids and back
(ids.py). Segments are topology without the driver's prefix, for example {"zone": "a"}.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from .errors import OutOfRange

T = TypeVar("T")
Strings = Mapping[str, str]
Segments = Mapping[str, str]

UNLIMITED = 2**63 - 1  # bytes: as many as CSI can say, which stands for "no limit is known"


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


SINGLE_NODE_MODES = frozenset(mode for mode in AccessMode if mode.single_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Access through a filesystem. Flags may be sensitive and stay out of repr and logs."""

    fs_type: str = ""
    flags: tuple[str, ...] = field(default=(), repr=False)
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """How a volume is to be used: an access mode, and a filesystem or (mount is None) raw block."""

    mode: AccessMode
    mount: Mount | None = None

    @property
    def block(self) -> bool:
        return self.mount is None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRange:
    """A wish for a size: at least `required`, at most `limit`; 0 means unset."""

    required: int = 0
    limit: int = 0

    def holds(self, size: int) -> bool:
        return size >= self.required and (not self.limit or size <= self.limit)

    def choose(self, *, granularity: int = 1, minimum: int = 1, maximum: int = 0, default: int = 0) -> int:
        """Return the smallest size a backend can make inside the range.

        `granularity`, `minimum`, `maximum` (0: none) describe the backend; `default` is wanted when
        the caller requires nothing. Raises OutOfRange when no size fits (csi-spec CreateVolume, 11).
        """
        wanted = max(self.required or min(default, self.limit or default), minimum)
        size = -(-wanted // granularity) * granularity
        if maximum and size > maximum:
            raise OutOfRange(f"{wanted} bytes is above the maximum of {maximum} bytes")
        if self.limit and size > self.limit:
            raise OutOfRange(
                f"no size between {self.required} and {self.limit} bytes can be made: "
                f"sizes are multiples of {granularity} bytes from {minimum} bytes up"
            )
        return size


class SourceKind(enum.Enum):
    SNAPSHOT = "snapshot"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a new volume starts as a copy of, within the same backend instance."""

    kind: SourceKind
    handle: str


IMPORTED = "imported"  # stands for the digest of parameters on a volume that the driver did not make


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What must be stored on the resource itself, so that no other state is needed: up to 2 KiB in all.

    A backend persists it with the volume or snapshot and returns it unchanged. `name` is the name
    the orchestrator asked for, `digest` a hash of all parameters it asked with, and `context` is the
    volume context that every later answer must repeat (csi-spec 2.2: it never changes).
    """

    driver: str
    cluster: str
    name: str
    digest: str
    source: Source | None = None
    context: Strings = field(default_factory=dict)

    @property
    def imported(self) -> bool:
        """Whether the volume was there before the driver: then it is never deleted, and never blank."""
        return self.digest == IMPORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRequirement:
    """Where a volume must be reachable (any of requisite) and where it had better be (in order)."""

    requisite: tuple[Segments, ...] = ()
    preferred: tuple[Segments, ...] = ()

    @property
    def candidates(self) -> tuple[Segments, ...]:
        """All segments worth trying, most wanted first, without repeats."""
        seen: list[Segments] = []
        for segments in (*self.preferred, *self.requisite):
            if segments not in seen:
                seen.append(segments)
        return tuple(seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRequest:
    """CreateVolume. `parameters` and `mutable` are instances of the backend's own schemas.

    `metadata` is for people who look at the storage. It may hold any text; what does not fit into the
    storage's tags is changed or left out, and never a reason to fail.
    """

    stamp: Stamp
    size: SizeRange = SizeRange()
    capabilities: tuple[Capability, ...] = ()
    parameters: Any = None
    mutable: Any = None
    topology: TopologyRequirement | None = None
    metadata: Strings = field(default_factory=dict)  # PVC name and namespace, PV name: for tags
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None  # time.monotonic() at which the caller stops listening

    @property
    def name(self) -> str:
        return self.stamp.name

    @property
    def source(self) -> Source | None:
        return self.stamp.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume as the storage system knows it: `size` bytes, exactly what its device has.

    Empty topology: reachable from everywhere.
    """

    handle: str
    size: int
    stamp: Stamp
    topology: tuple[Segments, ...] = ()
    published_nodes: tuple[str, ...] = ()  # Node.id of each; only with the PublishedNodes feature


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """CreateSnapshot. `parameters` is an instance of the backend's SnapshotParameters.

    The stamp's own `source` is empty: `source` here is what is cut, to be stored as well.
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
    """A snapshot. `size` is the smallest volume it can be restored to; `created` never changes."""

    handle: str
    source: str  # volume handle, also after that volume is gone
    size: int
    created: datetime  # timezone-aware
    stamp: Stamp
    ready: bool = True
    group: str = ""  # group snapshot handle
    topology: tuple[Segments, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshotRequest:
    """CreateVolumeGroupSnapshot: one point in time across all sources, a set, or nothing."""

    stamp: Stamp
    sources: tuple[str, ...]  # volume handles
    parameters: Any = None
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    handle: str
    snapshots: tuple[Snapshot, ...]
    created: datetime
    stamp: Stamp

    @property
    def ready(self) -> bool:
        return all(snapshot.ready for snapshot in self.snapshots)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandRequest:
    handle: str
    size: SizeRange
    capability: Capability | None = None
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The size after an expand, and whether the node still has to see the larger device."""

    size: int
    node_required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifyRequest:
    """ControllerModifyVolume: `mutable` holds what to change; unset fields stay untouched."""

    handle: str
    mutable: Any
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """One page of a listing: items after `cursor` ("" for the start), at most `limit` (0: no cap)."""

    cursor: str = ""
    limit: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """`cursor` continues after the last item ("" when there is no more), even if that item is gone."""

    items: tuple[T, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """GetCapacity. None or empty: not asked for."""

    capabilities: tuple[Capability, ...] = ()
    parameters: Any = None
    segments: Segments | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReport:
    """What could be created. `available` is UNLIMITED where the storage tells no limit."""

    available: int
    maximum: int | None = None  # largest single volume
    minimum: int | None = None  # smallest single volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as named by its node_id: its name, and the fact this instance stored there, if any.

    `id` is the node_id itself: a PublishedNodes backend keeps it on the volume to report it again.
    """

    name: str
    fact: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    handle: str
    node: Node
    capability: Capability
    read_only: bool = False
    context: Strings = field(default_factory=dict)
    secrets: Strings = field(default_factory=dict, repr=False)
    deadline: float | None = None


class Health(enum.Enum):
    """Kinds of volume trouble; names and numbers are those of VolumeHealthErrorType in csi.proto."""

    DEGRADED = 1
    INACCESSIBLE = 2
    DATA_LOSS = 3


class StorageHealth(enum.Enum):
    """Kinds of backend trouble; names and numbers are those of StorageHealthErrorType in csi.proto."""

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
    handle: str
    entries: tuple[HealthEntry, ...] = ()  # empty: healthy


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageHealthEntry:
    status: StorageHealth
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMap:
    """Allocated or changed extents, in strictly increasing order; `size` is the volume's when it was cut.

    `block_size` is the length of every extent, or 0 when lengths vary. Extents that end at or before
    the requested offset are left out. The iterator raises when it cannot go on; it never just ends.
    """

    size: int
    extents: Iterator[Extent]
    block_size: int = 0


class Blank(enum.Enum):
    """How a device that shows no signature may be proven to hold no data (node/format.py).

    NEVER: it was copied from something (clone, restore, import), so it is never formatted.
    ZEROED: a device never written reads back as zeros; the engine reads it to find out.
    STAMPED: the storage does not zero, but a stamp on the resource says it was never used.
    INTERRUPTED: a stamp says that formatting began on a blank device and did not finish, so what is
        there is the torn work of mkfs and nobody's data.
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
    {"device/serial": "vol0abc"}. It is never empty, and different for every volume. The engine checks it
    right before it formats, mounts or binds.
    """

    path: Path
    number: str
    proof: Strings
    blank: Blank
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """Make a volume's device appear on this node.

    With `read_only` the device itself refuses writes (blockdev --setro will do), and Device.read_only
    says so.
    """

    handle: str
    read_only: bool = False
    block: bool = False
    capability: Capability | None = None  # how the volume is to be used, where the caller says so
    volume_context: Strings = field(default_factory=dict)
    publish_context: Strings = field(default_factory=dict)
    secrets: Strings = field(default_factory=dict, repr=False)
