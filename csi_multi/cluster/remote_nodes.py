"""All nodes seen from the controller: found by name, one channel each, renewed when address or certificates change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.cluster import NODE_PLACEHOLDER, Cluster
from ..contract.errors import NotFound, StorageError, Unavailable
from .addresses import Addresses
from .credentials import Credentials
from .remote_node import Node

PATIENCE = 10.0  # seconds for many nodes to answer


class Lost(NotFound):
    """It lived on a node that the operator has declared lost."""


class Nodes:
    """The drivers on the nodes."""

    def __init__(self, cluster: Cluster, addresses: Addresses, credentials: Credentials) -> None:
        self.lost = cluster.lost
        self.addresses = addresses
        self._identity = cluster.node_identity
        self._credentials = credentials
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}

    def names(self) -> list[str]:
        """Return the names of all nodes that are not lost, sorted."""
        return sorted(set(self.addresses.names()) - self.lost)

    def get(self, name: str) -> Node:
        """Return the node. Raises Lost, or Unavailable for one without an address: it may get one again."""
        if name in self.lost:
            raise Lost(f"node {name!r} has been declared lost (cluster.lost), and what was on it with it")
        address = self.addresses.of(name)
        if address is None:
            raise Unavailable(
                f"node {name!r} is not known here: add it to the nodes of the cluster, or declare it lost "
                "(cluster.lost)"
            )
        bundle = self._credentials.current()
        with self._lock:
            node = self._nodes.get(name)
            if node and node.address == address and node.bundle is bundle:
                return node
            self._nodes[name] = Node(name, address, self._identity.replace(NODE_PLACEHOLDER, name), bundle)
        if node:
            node.retire()
        return self._nodes[name]

    def ask(self, names: Iterable[str], rpc: str, requests: Any, deadline: float | None) -> dict[str, Any]:
        """Send one RPC to many nodes at once; return by name the response, or the StorageError in its place.

        `requests` is the request, or one by name. Nodes have PATIENCE seconds, less when the deadline is nearer.
        """
        seconds = PATIENCE if deadline is None else max(min(PATIENCE, deadline - time.monotonic()), 0.001)
        pending: dict[str, Any] = {}
        for name in names:
            request = requests[name] if isinstance(requests, Mapping) else requests
            try:
                pending[name] = self.get(name).begin(rpc, request, seconds)
            except StorageError as error:
                pending[name] = error
        return {name: one if isinstance(one, StorageError) else one.outcome() for name, one in pending.items()}

    def down(self) -> dict[str, str]:
        """Return why, by name, of every node that could not be reached when it was last tried."""
        return {name: reason for name, node in [*self._nodes.items()] if (reason := node.circuit.reason())}

    def close(self) -> None:
        self.addresses.close()
        for node in [*self._nodes.values()]:
            node.close()
