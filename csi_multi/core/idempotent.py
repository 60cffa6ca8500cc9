"""CSI idempotency, once, over backends that tell the truth.

Create first; only when that fails fetch what is there and compare it with the request. A match is
the answer, a difference is AlreadyExists naming it. Deleting what is not there is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from ..contract.backend import Attach, Backend, Capacity, Clone, Expand, GroupSnapshots, NodeLocal, Snapshots
from ..contract.errors import (
    AlreadyExists,
    Busy,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    StorageError,
    Timeout,
    Unavailable,
    Unsupported,
)
from ..contract.model import (
    UNLIMITED,
    CapacityReport,
    CapacityRequest,
    ExpandRequest,
    Expansion,
    GroupSnapshot,
    GroupSnapshotRequest,
    Node,
    Snapshot,
    SnapshotRequest,
    SourceKind,
    Stamp,
    Strings,
    Volume,
    VolumeRequest,
)
from . import topology

B = TypeVar("B", bound=Backend)
T = TypeVar("T")

FS_TYPE = "fsType"  # in the volume context: so that a changed default does not touch existing volumes
UNSETTLED = (Busy, Unavailable, Timeout)  # not final: the orchestrator asks again


def digest(*parameters: Mapping[str, str]) -> str:
    """Return a hash that is equal only for equal parameters."""
    text = msgspec.json.encode([dict(one) for one in parameters], order="deterministic")
    return hashlib.sha256(text).hexdigest()[:32]


def create_volume(backend: Backend, request: VolumeRequest, node: str) -> Volume:
    """Make the volume, or return the one that was made for this very request."""
    refuse_unusable(backend, request)
    try:
        refuse_unreachable(backend, request, node)
        return _make(backend, request)
    except UNSETTLED:
        raise
    except StorageError as error:
        volume = _earlier("volume", request.name, backend.find_volume, error)
    _refuse_difference("volume", volume.stamp, request.stamp)
    _refuse_other_use(volume, request)
    if not request.size.holds(volume.size):
        raise AlreadyExists(f"volume {request.name!r} exists with {volume.size} bytes, outside of what is asked now")
    if not topology.satisfies(topology.of_volume(backend, volume), request.topology):
        raise AlreadyExists(f"volume {request.name!r} exists in another topology than is asked now")
    return volume


def refuse_unusable(backend: Backend, request: VolumeRequest) -> None:
    """Raise InvalidArgument when a volume made for this request could not be used as asked."""
    for capability in request.capabilities:
        if reason := backend.unsupported(capability, request.parameters):
            raise InvalidArgument(f"volume_capabilities: {reason}")


def refuse_unreachable(backend: Backend, request: VolumeRequest, node: str) -> None:
    """Raise ResourceExhausted when a node-local backend's node is not among those asked for."""
    if request.topology and isinstance(backend, NodeLocal):
        here = ({topology.NODE: node},)
        if request.topology.requisite and not topology.satisfies(here, request.topology):
            raise ResourceExhausted(f"this backend makes volumes on node {node!r} only, which is not in requisite")


def delete_volume(backend: Backend, handle: str, secrets: Strings) -> None:
    with suppress(NotFound):
        backend.delete_volume(handle, secrets)


def create_snapshot(backend: Snapshots, request: SnapshotRequest) -> Snapshot:
    """Cut the snapshot, or return the one that was cut for this very request."""
    try:
        return backend.create_snapshot(request)
    except UNSETTLED:
        raise
    except StorageError as error:
        snapshot = _earlier("snapshot", request.name, backend.find_snapshot, error)
    if snapshot.source != request.source:
        raise AlreadyExists(f"snapshot {request.name!r} exists, but of volume {snapshot.source!r}")
    _refuse_difference("snapshot", snapshot.stamp, request.stamp)
    return snapshot


def delete_snapshot(backend: Snapshots, handle: str, secrets: Strings) -> None:
    """Delete the snapshot. The backend refuses a member of a group, since only it knows without a further look."""
    with suppress(NotFound):
        backend.delete_snapshot(handle, secrets)


def create_group_snapshot(backend: GroupSnapshots, request: GroupSnapshotRequest) -> GroupSnapshot:
    """Cut the group, or return the one that was cut for this very request."""
    try:
        return backend.create_group_snapshot(request)
    except UNSETTLED:
        raise
    except StorageError as error:
        group = _earlier("group snapshot", request.stamp.name, backend.find_group_snapshot, error)
    if sorted(snapshot.source for snapshot in group.snapshots) != sorted(request.sources):
        raise AlreadyExists(f"group snapshot {request.stamp.name!r} exists, but of other volumes")
    _refuse_difference("group snapshot", group.stamp, request.stamp)
    return group


def delete_group_snapshot(backend: GroupSnapshots, handle: str, secrets: Strings) -> None:
    with suppress(NotFound):
        backend.delete_group_snapshot(handle, secrets)


def expand_volume(backend: Expand, request: ExpandRequest) -> Expansion:
    """Grow the volume; one that is large enough already is done, as long as the limit allows it."""
    if request.size.limit:
        volume = backend.get_volume(request.handle)
        if volume.size > request.size.limit:
            raise OutOfRange(f"the volume has {volume.size} bytes already, above limit_bytes, and never shrinks")
    return backend.expand_volume(request)


def capacity(backend: Backend, request: CapacityRequest, node: str) -> CapacityReport | None:
    """Return what could be created; None where the backend cannot serve this use or this place at all.

    A backend that does not know is answered for: to kube-scheduler a class without a figure has no room, for ever.
    Which places it reaches only a node can tell, so a place that it does not reach is found when the volume is made.
    """
    if any(backend.unsupported(capability, request.parameters) for capability in request.capabilities):
        return None
    elsewhere = request.segments is not None and not topology.covers(request.segments, {topology.NODE: node})
    if elsewhere and isinstance(backend, NodeLocal):
        return None
    return backend.capacity(request) if isinstance(backend, Capacity) else CapacityReport(available=UNLIMITED)


def detach(backend: Attach, handle: str, node: Node | None, secrets: Strings) -> None:
    with suppress(NotFound):
        backend.detach(handle, node, secrets)


def _make(backend: Backend, request: VolumeRequest) -> Volume:
    if request.source is None:
        return backend.create_volume(request)
    if request.source.kind is SourceKind.SNAPSHOT and isinstance(backend, Snapshots):
        return backend.restore_volume(request)
    if request.source.kind is SourceKind.VOLUME and isinstance(backend, Clone):
        return backend.clone_volume(request)
    raise InvalidArgument(f"volume_content_source: this backend cannot copy from a {request.source.kind.value}")


def _refuse_difference(kind: str, found: Stamp, wanted: Stamp) -> None:
    if found.source != wanted.source:
        raise AlreadyExists(f"{kind} {wanted.name!r} exists, made from another content source")
    if found.digest != wanted.digest:
        raise AlreadyExists(f"{kind} {wanted.name!r} exists with other parameters")


def _refuse_other_use(volume: Volume, request: VolumeRequest) -> None:
    """A default filesystem that has changed since makes no difference, one that is named does."""
    made, asked = volume.stamp.context.get(FS_TYPE, ""), request.stamp.context.get(FS_TYPE, "")
    if bool(made) != bool(asked):
        uses = ("block access", f"filesystem {made or asked!r}")
        raise AlreadyExists(f"volume {request.name!r} exists for {uses[bool(made)]}, not for {uses[bool(asked)]}")
    for capability in request.capabilities:
        if capability.mount and capability.mount.fs_type not in ("", made):
            wanted = capability.mount.fs_type
            raise AlreadyExists(f"volume {request.name!r} exists for filesystem {made!r}, not for {wanted!r}")


def _earlier(kind: str, name: str, find: Callable[[str], T], error: StorageError) -> T:
    """Return what an earlier try made under the name, whatever hinders a new one: its source may be
    gone by now, or the pool full. Answering with that final error would leak what exists.

    Raises the error when nothing is there, and Busy for a name that is taken by nothing that can be
    found: somebody is making or removing it now.
    """
    try:
        return find(name)
    except NotFound:
        if isinstance(error, AlreadyExists):
            raise Busy(
                f"{kind} {name!r} is being made or removed, or something half-made has its name "
                "(the backend says that the name is taken, and finds nothing under it); try again"
            ) from None
        raise error from None


def require(backend: Backend, feature: type[B], what: str) -> B:
    """Return the backend as one that has the feature. Raises Unsupported when it lacks it."""
    if not isinstance(backend, feature):
        raise Unsupported(f"the backend of this volume does not support {what}")
    return backend
