"""Holds the answer of a node against what the node was asked: it may only name what is on that node.

A node that was taken over could otherwise answer with the id of another node's volume. The orchestrator would store it,
and a later deletion would reach that volume. So every id, source and topology in an answer must belong to the node and
to the instance of the request; a size must be within the requested range; and the answer must be one that CSI allows.
Any other is refused with a code that is not final, logged, and counted (`csi_multi_node_answers_refused_total`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from .._proto import csi_pb2 as pb
from ..contract import ids
from ..contract.backend import NodeLocal
from ..contract.errors import InvalidArgument, NotFound, OutOfRange, StorageError, Unavailable
from ..core import mixed_groups, topology
from ..loading.registry import Registry
from ..rpc import validate

log = logging.getLogger(__name__)

Check = Callable[["NodeObjects", Any, Any], str]  # (the node, request, response) -> what is wrong, "" when nothing is


class RefusedAnswer(Unavailable):
    """A node's answer names what is not the node's. The node may have done what it was asked to do."""


class AnswerCheck:
    """Checks the answers of all nodes; `refused` is how many were refused."""

    def __init__(self, driver: str, registry: Registry) -> None:
        self._driver = driver
        self._registry = registry
        self._lock = threading.Lock()
        self.refused = 0

    def check(self, node: str, rpc: str, request: Any, answer: bytes) -> Any:
        """Return the response. Raises RefusedAnswer for an answer that is wrong."""
        response = getattr(pb, f"{rpc}Response")()
        try:
            response.ParseFromString(answer)
            validate.response(response)
            check = CHECKS.get(rpc)
            problem = check(NodeObjects(node, self._driver, self._registry), request, response) if check else ""
        except DecodeError:
            problem = f"it is not a {response.DESCRIPTOR.full_name}"
        except (InvalidArgument, OutOfRange) as error:
            problem = f"it breaks a rule of CSI: {error}"
        if not problem:
            return response
        with self._lock:
            self.refused += 1
        text = f"the answer of node {node!r} to {rpc} is refused: {problem}"
        log.error(text, extra={"fields": {"node": node, "rpc": rpc, "problem": problem}})
        raise RefusedAnswer(f"{text}; find out who controls the node before you use it again")


class NodeObjects:
    """What may be named by an answer of one node. Every method returns what is wrong, "" when nothing is."""

    def __init__(self, node: str, driver: str, registry: Registry) -> None:
        self._node = node
        self._place = {f"{driver}/{topology.NODE}": node}
        self._registry = registry

    def own(self, field: str, text: str, instance: str = "") -> str:
        """Check that an id is one of this node and, where it is given, of the instance."""
        try:
            name, handle = ids.split(field, text)
            backend = self._registry.get(name).backend
            home = backend.node_of(handle) if isinstance(backend, NodeLocal) else ""
        except StorageError as error:
            return f"{field} {text[:128]!r}: {error}"
        if instance and name != instance:
            return f"{field} {text!r} belongs to backend {name!r}, but the request was for {instance!r}"
        return "" if home == self._node else f"{field} {text!r} is not on this node"

    def volume(self, volume: Any, instance: str = "") -> str:
        return (
            self.own("volume_id", volume.volume_id, instance)
            or self.source(volume)
            or first(self._topology(one.segments) for one in volume.accessible_topology)
            or ("" if volume.accessible_topology else f"volume {volume.volume_id!r} has no topology")
        )

    def source(self, volume: Any) -> str:
        """Check that the source of a volume is of its instance and node."""
        source, instance = volume.content_source, volume.volume_id.partition("/")[0]
        if source.WhichOneof("type") == "snapshot":
            return self.own("snapshot_id", source.snapshot.snapshot_id, instance)
        return self.own("volume_id", source.volume.volume_id, instance) if source.WhichOneof("type") else ""

    def snapshot(self, snapshot: Any, instance: str = "") -> str:
        instance = instance or snapshot.snapshot_id.partition("/")[0]
        group = snapshot.group_snapshot_id
        return (
            self.own("snapshot_id", snapshot.snapshot_id, instance)
            or self.own("source_volume_id", snapshot.source_volume_id, instance)
            or (self.group(group, instance) if group else "")
        )

    def group(self, text: str, instance: str) -> str:
        """Check the id of a group; one across backends is of no instance, but of this node."""
        if not mixed_groups.is_mixed(text):
            return self.own("group_snapshot_id", text, instance)
        try:
            place, _ = mixed_groups.parse(text)
        except NotFound as error:
            return str(error)
        return "" if place.node == self._node else f"group_snapshot_id {text!r} is not on this node"

    def published(self, status: Any) -> str:
        """Check that a volume is published on this node only, because it can be used nowhere else."""
        names = [text.partition(";")[0] for text in status.published_node_ids]
        return next((f"a volume of this node is published on {name!r}" for name in names if name != self._node), "")

    def _topology(self, segments: Mapping[str, str]) -> str:
        found = dict(segments)
        wrong = any(found.get(key) != value for key, value in self._place.items())
        return f"accessible_topology {found} is not this node's" if wrong else ""


def first(problems: Iterable[str]) -> str:
    """Return the first problem, "" when there is none."""
    return next(filter(None, problems), "")


def differs(field: str, found: str, requested: str) -> str:
    return "" if found == requested else f"{field} is {found[:128]!r}, but the request was for {requested!r}"


def outside_range(size: int, requested: Any) -> str:
    """Check a size in bytes against a capacity range; 0: the size is not known."""
    low, high = requested.required_bytes, requested.limit_bytes
    if size and (size < low or (high and size > high)):
        return f"capacity_bytes is {size}, which is outside of the requested range ({low} to {high or 'any number'})"
    return ""


def _created_volume(node: NodeObjects, request: Any, response: Any) -> str:
    volume = response.volume
    if volume.content_source != request.volume_content_source:
        return f"volume {volume.volume_id[:128]!r} has another content_source than the requested one"
    return node.volume(volume, request.parameters["backend"]) or outside_range(
        volume.capacity_bytes, request.capacity_range
    )


def _shown_volume(node: NodeObjects, request: Any, response: Any) -> str:
    volume = response.volume
    different = differs("volume_id", volume.volume_id, request.volume_id)
    return different or node.volume(volume) or node.published(response.status)


def _listed_volumes(node: NodeObjects, request: Any, response: Any) -> str:
    return _page(request, response) or first(
        node.volume(entry.volume) or node.published(entry.status) for entry in response.entries
    )


def _expanded_volume(_node: NodeObjects, request: Any, response: Any) -> str:
    return outside_range(response.capacity_bytes, request.capacity_range)


def _created_snapshot(node: NodeObjects, request: Any, response: Any) -> str:
    snapshot, source = response.snapshot, request.source_volume_id
    different = differs("source_volume_id", snapshot.source_volume_id, source)
    return different or node.snapshot(snapshot, source.partition("/")[0])


def _shown_snapshot(node: NodeObjects, request: Any, response: Any) -> str:
    different = differs("snapshot_id", response.snapshot.snapshot_id, request.snapshot_id)
    return different or node.snapshot(response.snapshot)


def _listed_snapshots(node: NodeObjects, request: Any, response: Any) -> str:
    def problem(snapshot: Any) -> str:
        return (
            node.snapshot(snapshot)
            or (differs("snapshot_id", snapshot.snapshot_id, request.snapshot_id) if request.snapshot_id else "")
            or (
                differs("source_volume_id", snapshot.source_volume_id, request.source_volume_id)
                if request.source_volume_id
                else ""
            )
        )

    return _page(request, response) or first(problem(entry.snapshot) for entry in response.entries)


def _health(_node: NodeObjects, request: Any, response: Any) -> str:
    return differs("volume_id", response.volume_health.volume_id, request.volume_id)


def _listed_health(node: NodeObjects, request: Any, response: Any) -> str:
    return _page(request, response) or first(node.own("volume_id", entry.volume_id) for entry in response.entries)


def _created_group(node: NodeObjects, request: Any, response: Any) -> str:
    group, instance = response.group_snapshot, request.source_volume_ids[0].partition("/")[0]
    sources = sorted(member.source_volume_id for member in group.snapshots)
    if sources != sorted(request.source_volume_ids):
        return f"the snapshots of the group are of {sources}, but the request was for others"
    return node.group(group.group_snapshot_id, instance) or _members(node, group)


def _shown_group(node: NodeObjects, request: Any, response: Any) -> str:
    group = response.group_snapshot
    different = differs("group_snapshot_id", group.group_snapshot_id, request.group_snapshot_id)
    return different or _members(node, group)


def _members(node: NodeObjects, group: Any) -> str:
    """Check the members; those of a group across backends may be of any instance, each that of its source."""
    text = group.group_snapshot_id
    instance = "" if mixed_groups.is_mixed(text) else text.partition("/")[0]
    return first(
        node.snapshot(member, instance)
        or differs("group_snapshot_id", member.group_snapshot_id, group.group_snapshot_id)
        for member in group.snapshots
    )


def _blocks(_node: NodeObjects, _request: Any, response: Any) -> str:
    """Check that blocks are in order, and within the volume: a backup would be wrong unnoticed."""
    end, size = 0, response.volume_capacity_bytes
    for one in response.block_metadata:
        if one.byte_offset < end or one.size_bytes <= 0 or one.byte_offset >= size:
            return f"a block of {one.size_bytes} bytes at {one.byte_offset} follows byte {end} of a volume of {size}"
        end = one.byte_offset + one.size_bytes
    return ""


def _page(request: Any, response: Any) -> str:
    """Check that a page is no longer than requested, and that the list gets on."""
    if request.max_entries and len(response.entries) > request.max_entries:
        return f"a page has {len(response.entries)} entries; at most {request.max_entries} were requested"
    same = response.next_token and response.next_token == request.starting_token
    return "the list does not end: next_token is the token of the request" if same else ""


CHECKS: dict[str, Check] = {
    "CreateVolume": _created_volume,
    "ControllerGetVolume": _shown_volume,
    "ListVolumes": _listed_volumes,
    "ControllerExpandVolume": _expanded_volume,
    "CreateSnapshot": _created_snapshot,
    "GetSnapshot": _shown_snapshot,
    "ListSnapshots": _listed_snapshots,
    "ControllerGetVolumeHealth": _health,
    "ControllerListVolumeHealth": _listed_health,
    "CreateVolumeGroupSnapshot": _created_group,
    "GetVolumeGroupSnapshot": _shown_group,
    "GetMetadataAllocated": _blocks,
    "GetMetadataDelta": _blocks,
}
