"""Lists and capacity, put together from many nodes.

A list is complete or an error: a volume that is missing in a list counts as deleted, so an unreachable node makes the
list UNAVAILABLE, unless the node is declared lost. Capacity is what can be used now, so an unreachable node has none.

The token of a list is "@<node>/<the node's own token>", with a digest of the node's name, because names may be longer
than a token. Nodes come after the instances of the controller itself, in the order of their names.
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
from .remote_nodes import RemoteNodes

PARALLEL_NODES = 16  # listed in parallel if the request has no limit; entries that do not fit are discarded
NODE_MARKER = "@"


class Aggregation:
    """Lists and capacity over all nodes."""

    def __init__(self, driver: str, nodes: RemoteNodes) -> None:
        self._driver = driver
        self._nodes = nodes

    def list_entries(self, rpc: str, request: Any, list_local: Callable[[Any], Any], deadline: float | None) -> Any:
        """Return the entries of `list_local`, then those of the nodes. Raises InvalidToken, Unavailable."""
        if request.starting_token.startswith(NODE_MARKER):
            names, node_token = self._resume(request.starting_token)
            page = AggregatedPage(empty_response(rpc), request.max_entries)
        else:
            names, node_token = self._nodes.names(), ""
            page = AggregatedPage(list_local(request), request.max_entries)
        while names and page.has_space():
            batch = names[: 1 if request.max_entries else PARALLEL_NODES]
            for name, response in self._first_pages(rpc, request, batch, page.space(), node_token, deadline):
                if not page.add(name, response, node_token):
                    return page.response
                node_token = ""
            names = names[len(batch) :]
        if names and not page.response.next_token:
            page.response.next_token = _token(names[0], node_token)
        return page.response

    def _first_pages(
        self, rpc: str, request: Any, names: Sequence[str], limit: int, node_token: str, deadline: float | None
    ) -> list[tuple[str, Any]]:
        """Return the first page of each node; the first of the nodes continues at `node_token`."""
        requests = {}
        for name in names:
            requests[name] = type(request)()
            requests[name].CopyFrom(request)
            requests[name].max_entries = limit
            requests[name].starting_token = node_token if name == names[0] else ""
        outcomes = self._nodes.call_many(names, rpc, requests, deadline)
        for outcome in outcomes.values():
            if isinstance(outcome, ForwardedError):
                raise outcome
            if isinstance(outcome, StorageError):
                raise Unavailable(
                    f"the list would be incomplete, and missing entries would count as deleted: {outcome}; repair the "
                    "node, or declare it lost (cluster.lost)"
                )
        return [*outcomes.items()]

    def _resume(self, token: str) -> tuple[list[str], str]:
        """Return the nodes from the token's on, and the token for the first of them. Raises InvalidToken."""
        digest, slash, node_token = token.removeprefix(NODE_MARKER).partition("/")
        names = self._nodes.names()
        start = next((index for index, name in enumerate(names) if slash and _digest(name) == digest), None)
        if start is None:
            raise InvalidToken(f"starting_token {token!r} belongs to no node of the cluster; list again from the start")
        return names[start:], node_token

    def capacity(self, request: pb.GetCapacityRequest, deadline: float | None) -> pb.GetCapacityResponse:
        """Return the capacity of the node in the topology or, without a topology, of all reachable nodes."""
        if request.accessible_topology.segments:
            segments = topology.strip_prefix(self._driver, request.accessible_topology.segments)
            name = segments.get(topology.NODE, "")
            if name in self._nodes.lost or self._nodes.addresses.address(name) is None:
                return pb.GetCapacityResponse()
            response: pb.GetCapacityResponse = self._nodes.get(name).call("GetCapacity", request, deadline)
            return response
        outcomes = self._nodes.call_many(self._nodes.names(), "GetCapacity", request, deadline)
        for outcome in outcomes.values():
            if isinstance(outcome, ForwardedError):
                raise outcome
        responses = [outcome for outcome in outcomes.values() if not isinstance(outcome, StorageError)]
        if outcomes and not responses:
            raise Unavailable(f"no node can be reached: {next(iter(outcomes.values()))}")
        return sum_capacity(responses)


class AggregatedPage:
    """One response of a list, filled from several nodes."""

    def __init__(self, response: Any, limit: int) -> None:
        self.response = response
        self._limit = min(limit or MAX_ENTRIES, MAX_ENTRIES)
        self._size = response.ByteSize()

    def has_space(self) -> bool:
        return not self.response.next_token and self.space() > 0

    def space(self) -> int:
        """Return how many entries still fit."""
        return self._limit - len(self.response.entries)

    def add(self, name: str, page: Any, node_token: str) -> bool:
        """Add a node's page, which began at `node_token`; return whether the page of the next node may follow."""
        size = page.ByteSize()
        if self.response.entries and (len(page.entries) > self.space() or self._size + size > MAX_BYTES):
            self.response.next_token = _token(name, node_token)  # the next response fetches it again
            return False
        self.response.entries.extend(page.entries)
        self._size += size
        if page.next_token:
            self.response.next_token = _token(name, page.next_token)
        return not page.next_token


def empty_response(rpc: str) -> Any:
    """Return an empty response of an RPC."""
    return getattr(pb, f"{rpc}Response")()


def sum_capacity(responses: Sequence[pb.GetCapacityResponse]) -> pb.GetCapacityResponse:
    """Add up the capacity of several nodes. One volume must fit on one of them, so its largest size is a maximum.

    Without a known limit there is no largest size.
    """
    available = sum(one.available_capacity for one in responses)
    total = pb.GetCapacityResponse(available_capacity=min(available, UNLIMITED))
    largest = [
        one.maximum_volume_size.value if one.HasField("maximum_volume_size") else one.available_capacity
        for one in responses
    ]
    if largest and max(largest) < UNLIMITED:
        total.maximum_volume_size.value = max(largest)
    if smallest := [one.minimum_volume_size.value for one in responses if one.HasField("minimum_volume_size")]:
        total.minimum_volume_size.value = min(smallest)
    return total


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _token(name: str, node_token: str) -> str:
    return f"{NODE_MARKER}{_digest(name)}/{node_token}"
