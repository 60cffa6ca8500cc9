"""Answers put together from many nodes.

A list is complete or there is none: a volume that is missing in a list counts as deleted, so a node that is down
makes it UNAVAILABLE, unless it is declared lost. Capacity is what can be had now, so a node that is down has none.

The token of a list is "@<node>/<the node's own token>", the node as a digest: names may be longer than a token.
Nodes come after the instances of the controller itself, in the order of their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from .._proto import csi_pb2 as pb
from ..contract.errors import InvalidToken, StorageError, Unavailable
from ..contract.model import UNLIMITED
from ..core import topology
from ..rpc.listing import MAX_BYTES, MAX_ENTRIES
from ..rpc.status import ForwardedError
from .remote_nodes import Nodes

TOGETHER = 16  # nodes asked at once for a list: what does not fit into the answer was asked for in vain
MARK = "@"


class Gathering:
    """Lists and capacity over all nodes."""

    def __init__(self, driver: str, nodes: Nodes) -> None:
        self._driver = driver
        self._nodes = nodes

    def listed(self, rpc: str, request: Any, here: Callable[[Any], Any], deadline: float | None) -> Any:
        """Return what `here` lists, and then what the nodes list. Raises InvalidToken, Unavailable."""
        if request.starting_token.startswith(MARK):
            names, inner = self._rest(request.starting_token)
            page = Page(pb_answer(rpc), request.max_entries)
        else:
            names, inner = self._nodes.names(), ""
            page = Page(here(request), request.max_entries)
        while names and page.open():
            some = names[: 1 if request.max_entries else TOGETHER]
            for name, answer in self._pages(rpc, request, some, page.wanted(), inner, deadline):
                if not page.add(name, answer, inner):
                    return page.answer
                inner = ""
            names = names[len(some) :]
        if names and not page.answer.next_token:
            page.answer.next_token = _token(names[0], inner)
        return page.answer

    def _pages(
        self, rpc: str, request: Any, names: Sequence[str], limit: int, inner: str, deadline: float | None
    ) -> list[tuple[str, Any]]:
        """Return the first page of each node; `inner` is where the first of them goes on."""
        questions = {}
        for name in names:
            questions[name] = type(request)()
            questions[name].CopyFrom(request)
            questions[name].max_entries = limit
            questions[name].starting_token = inner if name == names[0] else ""
        outcomes = self._nodes.ask(names, rpc, questions, deadline)
        for outcome in outcomes.values():
            if isinstance(outcome, ForwardedError):
                raise outcome
            if isinstance(outcome, StorageError):
                raise Unavailable(
                    f"no complete list can be given, and what is left out would count as deleted: {outcome}; bring the "
                    "node back, or declare it lost (cluster.lost)"
                )
        return [*outcomes.items()]

    def _rest(self, token: str) -> tuple[list[str], str]:
        """Return the nodes from the token's on, and where to go on in the first. Raises InvalidToken."""
        digest, slash, inner = token.removeprefix(MARK).partition("/")
        names = self._nodes.names()
        at = next((index for index, name in enumerate(names) if slash and _digest(name) == digest), None)
        if at is None:
            raise InvalidToken(f"starting_token {token!r} names no node that is here; list again from the start")
        return names[at:], inner

    def capacity(self, request: pb.GetCapacityRequest, deadline: float | None) -> pb.GetCapacityResponse:
        """Return the capacity on the node of the topology, or, without one, on all that can be reached."""
        if request.accessible_topology.segments:
            segments = topology.strip_prefix(self._driver, request.accessible_topology.segments)
            name = segments.get(topology.NODE, "")
            if name in self._nodes.lost or self._nodes.addresses.of(name) is None:
                return pb.GetCapacityResponse()
            answer: pb.GetCapacityResponse = self._nodes.get(name).call("GetCapacity", request, deadline)
            return answer
        outcomes = self._nodes.ask(self._nodes.names(), "GetCapacity", request, deadline)
        for outcome in outcomes.values():
            if isinstance(outcome, ForwardedError):
                raise outcome
        found = [outcome for outcome in outcomes.values() if not isinstance(outcome, StorageError)]
        if outcomes and not found:
            raise Unavailable(f"no node can be reached: {next(iter(outcomes.values()))}")
        return together(found)


class Page:
    """One answer of a list, filled from several nodes."""

    def __init__(self, answer: Any, limit: int) -> None:
        self.answer = answer
        self._limit = min(limit or MAX_ENTRIES, MAX_ENTRIES)
        self._size = answer.ByteSize()

    def open(self) -> bool:
        """Whether there is more to be added."""
        return not self.answer.next_token and self.wanted() > 0

    def wanted(self) -> int:
        return self._limit - len(self.answer.entries)

    def add(self, name: str, page: Any, inner: str) -> bool:
        """Add a node's page, which began at `inner`; return whether the next node's may follow."""
        size = page.ByteSize()
        if self.answer.entries and (len(page.entries) > self.wanted() or self._size + size > MAX_BYTES):
            self.answer.next_token = _token(name, inner)  # it is asked again, for the next answer
            return False
        self.answer.entries.extend(page.entries)
        self._size += size
        if page.next_token:
            self.answer.next_token = _token(name, page.next_token)
        return not page.next_token


def pb_answer(rpc: str) -> Any:
    """Return an empty response of a listing RPC."""
    return getattr(pb, f"{rpc}Response")()


def together(answers: Sequence[pb.GetCapacityResponse]) -> pb.GetCapacityResponse:
    """Add up what several nodes have; one volume must fit on one of them. Without a known limit there is no largest."""
    available = sum(one.available_capacity for one in answers)
    total = pb.GetCapacityResponse(available_capacity=min(available, UNLIMITED))
    largest = [
        one.maximum_volume_size.value if one.HasField("maximum_volume_size") else one.available_capacity
        for one in answers
    ]
    if largest and max(largest) < UNLIMITED:
        total.maximum_volume_size.value = max(largest)
    if smallest := [one.minimum_volume_size.value for one in answers if one.HasField("minimum_volume_size")]:
        total.minimum_volume_size.value = min(smallest)
    return total


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _token(name: str, inner: str) -> str:
    return f"{MARK}{_digest(name)}/{inner}"
