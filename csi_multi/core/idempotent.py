"""CSI idempotency for all backends: a backend reports AlreadyExists and NotFound, and this module decides.

A creation is tried first. Only when it fails, the existing object is read and compared with the request: an equal
one is returned, a different one is AlreadyExists with the difference. Deleting a missing object succeeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar, cast

import msgspec

from ..contract.backend import Attach, Backend, Capacity, Clone, Expand, GroupSnapshots, NodeLocal, Snapshots
from ..contract.errors import (
    NOT_FINAL,
    AlreadyExists,
    Busy,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    StorageError,
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
from .filesystems import AUTO, FS_TYPE

B = TypeVar("B", bound=Backend)
T = TypeVar("T")


def digest(*parameters: Mapping[str, str]) -> str:
    """Return a hash of parameters; only equal ones have the same."""
    text = msgspec.json.encode([dict(one) for one in parameters], order="deterministic")
    return hashlib.sha256(text).hexdigest()[:32]


def create_volume(backend: Backend, request: VolumeRequest, node: str) -> Volume:
    """Create the volume, or return the one that an earlier identical request created."""
    refuse_unusable(backend, request)
    try:
        refuse_unreachable(backend, request, node)
        create = _creating_method(backend, request)
        return create(request)
    except NOT_FINAL:
        raise
    except StorageError as error:
        volume = _find_earlier("volume", request.name, backend.find_volume, error)
    _refuse_difference("volume", volume.stamp, request.stamp)
    _refuse_other_use(volume, request)
    if not request.size.holds(volume.size):
        raise _conflict(f"volume {request.name!r} exists with {volume.size} bytes, outside the requested range")
    if not topology.satisfies((*topology.of_volume(backend, volume), *volume.topology_aliases), request.topology):
        raise _conflict(f"volume {request.name!r} exists, but is not reachable from the requested topology")
    return volume


def refuse_unusable(backend: Backend, request: VolumeRequest) -> None:
    """Raise InvalidArgument when the backend does not support a requested capability."""
    for capability in request.capabilities:
        if reason := backend.unsupported(capability, request.parameters):
            raise InvalidArgument(f"volume_capabilities: {reason}")


def refuse_unreachable(backend: Backend, request: VolumeRequest, node: str) -> None:
    """Raise ResourceExhausted when the node of a node-local backend is outside the requested topology."""
    if request.topology and isinstance(backend, NodeLocal):
        here = ({topology.NODE: node},)
        if request.topology.requisite and not topology.satisfies(here, request.topology):
            raise ResourceExhausted(
                f"this backend creates volumes on node {node!r} only, and no requisite topology contains it"
            )


def delete_volume(backend: Backend, handle: str, secrets: Strings) -> None:
    with suppress(NotFound):
        backend.delete_volume(handle, secrets)


def create_snapshot(backend: Snapshots, request: SnapshotRequest) -> Snapshot:
    """Create the snapshot, or return the one that an earlier identical request created."""
    try:
        return backend.create_snapshot(request)
    except NOT_FINAL:
        raise
    except StorageError as error:
        snapshot = _find_earlier("snapshot", request.name, backend.find_snapshot, error)
    if snapshot.source != request.source:
        raise _conflict(f"snapshot {request.name!r} exists, but its source is volume {snapshot.source!r}")
    _refuse_difference("snapshot", snapshot.stamp, request.stamp)
    return snapshot


def delete_snapshot(backend: Snapshots, handle: str, secrets: Strings) -> None:
    """Delete the snapshot. The backend refuses a member of a group, which it detects without another read."""
    with suppress(NotFound):
        backend.delete_snapshot(handle, secrets)


def create_group_snapshot(backend: GroupSnapshots, request: GroupSnapshotRequest) -> GroupSnapshot:
    """Create the group snapshot, or return the one that an earlier identical request created."""
    try:
        return backend.create_group_snapshot(request)
    except NOT_FINAL:
        raise
    except StorageError as error:
        group = _find_earlier("group snapshot", request.stamp.name, backend.find_group_snapshot, error)
    if sorted(snapshot.source for snapshot in group.snapshots) != sorted(request.sources):
        raise _conflict(f"group snapshot {request.stamp.name!r} exists, but its sources are other volumes")
    _refuse_difference("group snapshot", group.stamp, request.stamp)
    return group


def delete_group_snapshot(backend: GroupSnapshots, handle: str, secrets: Strings) -> None:
    with suppress(NotFound):
        backend.delete_group_snapshot(handle, secrets)


def expand_volume(backend: Expand, request: ExpandRequest) -> Expansion:
    """Expand the volume; one that is large enough stays as it is. Raises OutOfRange for one above the limit."""
    if request.size.limit:
        volume = backend.get_volume(request.handle)
        if volume.size > request.size.limit:
            raise OutOfRange(
                f"the volume has {volume.size} bytes, above limit_bytes {request.size.limit}; volumes cannot shrink"
            )
    return backend.expand_volume(request)


def capacity(backend: Backend, request: CapacityRequest, node: str) -> CapacityReport | None:
    """Return what can still be created; None where the backend supports neither the capabilities nor the segments.

    A backend without Capacity counts as unlimited: for kube-scheduler a class without a capacity never has space.
    Only a node knows which segments it reaches, so unreachable segments are found when the volume is created.
    """
    if any(backend.unsupported(capability, request.parameters) for capability in request.capabilities):
        return None
    other_node = request.segments is not None and not topology.is_inside(request.segments, {topology.NODE: node})
    if other_node and isinstance(backend, NodeLocal):
        return None
    return backend.capacity(request) if isinstance(backend, Capacity) else CapacityReport(available=UNLIMITED)


def detach(backend: Attach, handle: str, node: Node | None, secrets: Strings) -> None:
    with suppress(NotFound):
        backend.detach(handle, node, secrets)


def _creating_method(backend: Backend, request: VolumeRequest) -> Callable[[VolumeRequest], Volume]:
    """Return the method that creates, restores or clones the volume."""
    if request.source is None:
        return backend.create_volume
    if request.source.kind is SourceKind.SNAPSHOT and isinstance(backend, Snapshots):
        return backend.restore_volume
    if request.source.kind is SourceKind.VOLUME and isinstance(backend, Clone):
        return backend.clone_volume
    raise InvalidArgument(
        f"volume_content_source: this backend cannot create a volume from a {request.source.kind.value}"
    )


def _conflict(text: str) -> AlreadyExists:
    """Return the error for a request whose name belongs to something else; `text` says what the difference is."""
    return AlreadyExists(f"{text}; repeat the first request unchanged, or use another name")


def _refuse_difference(kind: str, found: Stamp, wanted: Stamp) -> None:
    if found.source != wanted.source:
        raise _conflict(f"{kind} {wanted.name!r} exists, created from another content source")
    if found.digest != wanted.digest:
        raise _conflict(f"{kind} {wanted.name!r} exists with other parameters")


def _refuse_other_use(volume: Volume, request: VolumeRequest) -> None:
    """Compare block access and filesystem. A default that has changed since does not count, a named filesystem does."""
    found, wanted = volume.stamp.context.get(FS_TYPE, ""), request.stamp.context.get(FS_TYPE, "")
    if bool(found) != bool(wanted):
        uses = ("block access", f"filesystem {found or wanted!r}")
        raise _conflict(f"volume {request.name!r} exists for {uses[bool(found)]}, not for {uses[bool(wanted)]}")
    for capability in request.capabilities:
        if capability.mount and capability.mount.fs_type not in ("", found) and found != AUTO:
            named = capability.mount.fs_type
            raise _conflict(f"volume {request.name!r} exists for filesystem {found!r}, not for {named!r}")


def _find_earlier(kind: str, name: str, find: Callable[[str], T], error: StorageError) -> T:
    """Return what an earlier request created under the name, whatever error a new creation got.

    The source may be deleted by now, or the pool full; returning that final error would leak the existing object.
    Raises the error when nothing has the name, and Busy when the name is taken but nothing is found: then another
    operation is creating or deleting the object now, or an incomplete one has the name.
    """
    existing = error.existing if isinstance(error, AlreadyExists) else None
    if isinstance(existing, Volume | Snapshot) and existing.stamp.name == name:
        return cast("T", existing)  # the proxy of the backend has checked it
    try:
        return find(name)
    except NotFound:
        if isinstance(error, AlreadyExists):
            raise Busy(
                f"the name of {kind} {name!r} is taken, but no complete {kind} has it: the {kind} is being created or "
                f"deleted, or an incomplete one has the name; try again"
            ) from None
        raise error from None


def require(backend: Backend, feature: type[B], operation: str) -> B:
    """Return the backend, typed as one with the feature. Raises InvalidArgument when it lacks the feature.

    Not Unsupported: another backend has the feature, so the RPC is advertised.
    """
    if not isinstance(backend, feature):
        raise InvalidArgument(f"the backend of this volume does not support {operation}; use one that does")
    return backend
