"""The node on which a new volume is created, chosen so that one name never has volumes on two nodes.

A request allows some nodes: those of its topology, or all of them. If it allows one, the request goes to that node
only. If it allows several, an earlier try may have created the volume on any of them, and its response may have been
lost. So every one of them is asked first whether it has the name, and all must answer: an unreachable node may have it
(UNAVAILABLE). Only if none has it is the volume created: on the first node in the order of preference, otherwise on
the node with the most free space. If a node is full, the next one is tried.

The question is CreateVolume itself, with a topology that the node cannot serve: a node that has the name answers
ALREADY_EXISTS, one that has not answers RESOURCE_EXHAUSTED, and one where an earlier try still runs answers ABORTED.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import grpc

from .._proto import csi_pb2 as pb
from ..contract.errors import ResourceExhausted, StorageError, Unavailable
from ..contract.model import TopologyRequirement
from ..core import topology
from ..rpc import convert
from ..rpc.status import ForwardedError
from .remote_nodes import RemoteNodes

log = logging.getLogger(__name__)
Code = grpc.StatusCode


class Placement:
    """CreateVolume of node-local instances for requests without a content source, which would determine the node."""

    def __init__(self, driver: str, nodes: RemoteNodes) -> None:
        self._driver = driver
        self._nodes = nodes

    def create(self, request: pb.CreateVolumeRequest, deadline: float | None) -> Any:
        preferred, others = self._allowed_nodes(request)
        names = [*preferred, *others]
        if len(names) > 1:
            if existing := self._find_existing(names, request, deadline):
                return self._nodes.get(existing).call("CreateVolume", request, deadline)
            names = [*preferred, *self._by_free_space(others, request, deadline)]
        return self._create_on_first_with_space(names, request, deadline)

    def _allowed_nodes(self, request: pb.CreateVolumeRequest) -> tuple[list[str], list[str]]:
        """Return the nodes that the request allows: the preferred ones in order, and the others."""
        if not request.HasField("accessibility_requirements"):
            return [], self._all_nodes()
        requirement = convert.requirement(self._driver, request.accessibility_requirements)
        if not requirement.requisite:
            names = self._all_nodes()  # a preference is no condition, so a node that is not known is left out
            preferred = [name for name in self._named_nodes(requirement, requirement.preferred) if name in names]
            return preferred, [name for name in names if name not in preferred]
        preferred = self._named_nodes(requirement, requirement.preferred)
        others = [name for name in self._named_nodes(requirement, requirement.requisite) if name not in preferred]
        if not preferred and not others:
            raise ResourceExhausted(
                f"the requested topology names no usable node: a volume of this backend needs the segment "
                f"{self._driver}/{topology.NODE} of a node that is not declared lost"
            )
        if not set(self._all_nodes()) & {*preferred, *others}:
            raise ResourceExhausted(
                f"the requested topology allows only nodes that the cluster does not have: "
                f"{', '.join(map(repr, [*preferred, *others]))}; add them to the nodes of the cluster"
            )
        return preferred, others

    def _named_nodes(self, requirement: TopologyRequirement, segments: Sequence[Any]) -> list[str]:
        """Return the nodes in these segments that are allowed and not lost, in order, each once."""
        named = [one[topology.NODE] for one in segments if topology.NODE in one]
        allowed = [name for name in named if topology.satisfies(({topology.NODE: name},), requirement)]
        return [name for name in dict.fromkeys(allowed) if name not in self._nodes.lost]

    def _all_nodes(self) -> list[str]:
        if names := self._nodes.names():
            return names
        raise Unavailable("the list of the cluster's nodes is not loaded yet, or is empty; try again")

    def _find_existing(self, names: Sequence[str], request: pb.CreateVolumeRequest, deadline: float | None) -> str:
        """Return the node that has a volume of this name already, "" when all of them answer that they have not."""
        found, refusals = [], []
        probes = self._probe_requests(names, request)
        for name, outcome in self._nodes.call_many(names, "CreateVolume", probes, deadline).items():
            code = outcome.code if isinstance(outcome, ForwardedError) else None
            if code is Code.ALREADY_EXISTS or isinstance(outcome, pb.CreateVolumeResponse):
                found.append(name)
            elif isinstance(outcome, ForwardedError) and code in (Code.ABORTED, Code.UNAVAILABLE):
                raise outcome
            elif isinstance(outcome, ForwardedError) and code is not Code.RESOURCE_EXHAUSTED:
                refusals.append(outcome)
            elif not isinstance(outcome, ForwardedError):
                raise Unavailable(
                    f"an earlier try may have created volume {request.name!r} on a node that does not answer: "
                    f"{outcome}; repair the node, declare it lost (cluster.lost), or use StorageClasses with "
                    "volumeBindingMode WaitForFirstConsumer, whose volumes request one node"
                )
        if refusals and not found:
            raise refusals[0]  # all others have answered that they have not the volume, so the code may be final
        if len(found) > 1:
            log.error(
                "several nodes have a volume of the same name", extra={"fields": {"name": request.name, "nodes": found}}
            )
        return found[0] if found else ""

    def _probe_requests(
        self, names: Sequence[str], request: pb.CreateVolumeRequest
    ) -> dict[str, pb.CreateVolumeRequest]:
        """Return by node a request that finds the volume there and cannot create it."""
        probes = {}
        for name in names:
            probe = pb.CreateVolumeRequest()
            probe.CopyFrom(request)
            probe.ClearField("accessibility_requirements")
            elsewhere = {topology.NODE: "nowhere" if name != "nowhere" else "elsewhere"}
            segments = pb.Topology(segments=topology.add_prefix(self._driver, elsewhere))
            probe.accessibility_requirements.requisite.append(segments)
            probes[name] = probe
        return probes

    def _by_free_space(
        self, names: Sequence[str], request: pb.CreateVolumeRequest, deadline: float | None
    ) -> list[str]:
        """Return the nodes, the one with the most free space first; those without an answer last."""
        if len(names) < 2:
            return [*names]
        probe = pb.GetCapacityRequest(volume_capabilities=request.volume_capabilities, parameters=request.parameters)
        outcomes = self._nodes.call_many(names, "GetCapacity", probe, deadline)

        def free_space(name: str) -> int:
            outcome = outcomes[name]
            return -1 if isinstance(outcome, StorageError) else int(outcome.available_capacity)

        return sorted(names, key=lambda name: (-free_space(name), name))

    def _create_on_first_with_space(
        self, names: Sequence[str], request: pb.CreateVolumeRequest, deadline: float | None
    ) -> Any:
        """Create it on the first node that is not full. Stop at one that does not answer, because it may have it."""
        full: dict[str, ForwardedError] = {}
        for name in names:
            try:
                return self._nodes.get(name).call("CreateVolume", request, deadline)
            except ForwardedError as error:
                if error.code is not Code.RESOURCE_EXHAUSTED:
                    raise
                full[name] = error
        if len(full) == 1:
            raise next(iter(full.values()))
        reasons = "; ".join(f"{name}: {error}" for name, error in full.items())
        raise ResourceExhausted(f"no node has enough free space: {reasons}")
