"""On which node a new volume is made, so that one name never stands for two volumes.

A request allows some nodes: those of its topology, or all. Where it allows one, that node is asked and nobody
else. Where it allows several, an earlier try may have made the volume on any of them, and its answer may have
been lost. So first every one of them is asked whether it has the name, and must answer: one that is down may
have it (UNAVAILABLE). Only if none has it is it made: on the first node in the order of preference, else with
the most room; a node that is full passes it on to the next.

The question is CreateVolume itself, with a topology that the node cannot serve: a node that has the name says
ALREADY_EXISTS, one that has not says RESOURCE_EXHAUSTED, and one where an earlier try still runs says ABORTED.
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
from .remote_nodes import Nodes

log = logging.getLogger(__name__)
Code = grpc.StatusCode


class Placing:
    """CreateVolume for node-local instances, when no content source decides."""

    def __init__(self, driver: str, nodes: Nodes) -> None:
        self._driver = driver
        self._nodes = nodes

    def create(self, request: pb.CreateVolumeRequest, deadline: float | None) -> Any:
        first, others = self._allowed(request)
        names = [*first, *others]
        if len(names) > 1:
            if having := self._having(names, request, deadline):
                return self._nodes.get(having).call("CreateVolume", request, deadline)
            names = [*first, *self._by_room(others, request, deadline)]
        return self._first_with_room(names, request, deadline)

    def _allowed(self, request: pb.CreateVolumeRequest) -> tuple[list[str], list[str]]:
        """Return the nodes where the volume may be: those with a place in the order, and the others."""
        if not request.HasField("accessibility_requirements"):
            return [], self._any()
        wanted = convert.requirement(self._driver, request.accessibility_requirements)
        if not wanted.requisite:
            first = self._known(wanted, wanted.preferred)
            return first, [name for name in self._any() if name not in first]
        first = self._known(wanted, wanted.preferred)
        others = [name for name in self._known(wanted, wanted.requisite) if name not in first]
        if not first and not others:
            raise ResourceExhausted(
                f"the topology that is asked for names no node whose disks can be used: this backend needs the segment "
                f"{self._driver}/{topology.NODE} of a node that is not lost"
            )
        return first, others

    def _known(self, wanted: TopologyRequirement, places: Sequence[Any]) -> list[str]:
        """Return the nodes that are named, allowed and not lost, in order, each once."""
        named = [place[topology.NODE] for place in places if topology.NODE in place]
        allowed = [name for name in named if topology.satisfies(({topology.NODE: name},), wanted)]
        return [name for name in dict.fromkeys(allowed) if name not in self._nodes.lost]

    def _any(self) -> list[str]:
        if names := self._nodes.names():
            return names
        raise Unavailable("no node of the cluster is known yet")

    def _having(self, names: Sequence[str], request: pb.CreateVolumeRequest, deadline: float | None) -> str:
        """Return the node that has a volume of this name already, "" when all say that they do not."""
        found = []
        for name, outcome in self._nodes.ask(names, "CreateVolume", self._questions(names, request), deadline).items():
            code = outcome.code if isinstance(outcome, ForwardedError) else None
            if code is Code.ALREADY_EXISTS or isinstance(outcome, pb.CreateVolumeResponse):
                found.append(name)
            elif isinstance(outcome, ForwardedError) and code is not Code.RESOURCE_EXHAUSTED:
                raise outcome
            elif not isinstance(outcome, ForwardedError):
                raise Unavailable(
                    f"volume {request.name!r} may have been made by an earlier try on a node that does not answer: "
                    f"{outcome}; bring the node back, declare it lost (cluster.lost), or use StorageClasses with "
                    "volumeBindingMode WaitForFirstConsumer, whose volumes ask for one node"
                )
        if len(found) > 1:
            log.error(
                "a name stands for volumes on several nodes", extra={"fields": {"name": request.name, "nodes": found}}
            )
        return found[0] if found else ""

    def _questions(self, names: Sequence[str], request: pb.CreateVolumeRequest) -> dict[str, pb.CreateVolumeRequest]:
        """Return by node a request that finds, and cannot make, the volume there."""
        questions = {}
        for name in names:
            question = pb.CreateVolumeRequest()
            question.CopyFrom(request)
            question.ClearField("accessibility_requirements")
            elsewhere = {topology.NODE: "nowhere" if name != "nowhere" else "elsewhere"}
            place = pb.Topology(segments=topology.add_prefix(self._driver, elsewhere))
            question.accessibility_requirements.requisite.append(place)
            questions[name] = question
        return questions

    def _by_room(self, names: Sequence[str], request: pb.CreateVolumeRequest, deadline: float | None) -> list[str]:
        """Return the nodes with the most room first; those that cannot tell last."""
        if len(names) < 2:
            return [*names]
        question = pb.GetCapacityRequest(volume_capabilities=request.volume_capabilities, parameters=request.parameters)
        outcomes = self._nodes.ask(names, "GetCapacity", question, deadline)

        def room(name: str) -> int:
            outcome = outcomes[name]
            return -1 if isinstance(outcome, StorageError) else int(outcome.available_capacity)

        return sorted(names, key=lambda name: (-room(name), name))

    def _first_with_room(self, names: Sequence[str], request: pb.CreateVolumeRequest, deadline: float | None) -> Any:
        """Make it on the first node that is not full. One that does not answer may have made it: no other is tried."""
        full: dict[str, ForwardedError] = {}
        for name in names:
            try:
                return self._nodes.get(name).call("CreateVolume", request, deadline)
            except ForwardedError as answer:
                if answer.code is not Code.RESOURCE_EXHAUSTED:
                    raise
                full[name] = answer
        if len(full) == 1:
            raise next(iter(full.values()))
        raise ResourceExhausted("no node has room: " + "; ".join(f"{name}: {text}" for name, text in full.items()))
