"""All nodes as the controller sees them: found by name, one channel each, renewed with address and certificates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..config.cluster import NODE_PLACEHOLDER, Cluster
from ..contract.errors import NotFound, StorageError, Unavailable
from ..loading.registry import Registry
from .addresses import NodeAddresses
from .answer_check import AnswerCheck
from .credentials import Credentials
from .remote_node import RemoteNode

CALL_TIMEOUT = 10.0  # seconds for many nodes to answer


class NodeLost(NotFound):
    """The object was on a node that the operator has declared lost."""


class RemoteNodes:
    """The drivers on the nodes. `answers` checks what they answer; without instances it refuses everything."""

    def __init__(self, cluster: Cluster, addresses: NodeAddresses, credentials: Credentials) -> None:
        self.lost = cluster.lost
        self.addresses = addresses
        self._identity = cluster.node_identity
        self._credentials = credentials
        self.answers = AnswerCheck("", Registry(()))
        self._lock = threading.Lock()
        self._nodes: dict[str, RemoteNode] = {}

    def names(self) -> list[str]:
        """Return the names of all nodes that are not lost, sorted."""
        return sorted(set(self.addresses.names()) - self.lost)

    def get(self, name: str) -> RemoteNode:
        """Return the node. Raises NodeLost, or Unavailable for one without an address, which may get one later."""
        if name in self.lost:
            raise NodeLost(f"node {name!r} is declared lost (cluster.lost), with everything on it")
        address = self.addresses.address(name)
        if address is None:
            raise Unavailable(
                f"node {name!r} is not a known node of the cluster; add it to the nodes of the cluster, or declare it "
                "lost (cluster.lost)"
            )
        certificates = self._credentials.current()
        with self._lock:
            node = self._nodes.get(name)
            if node and node.address == address and node.certificates is certificates:
                return node
            identity = self._identity.replace(NODE_PLACEHOLDER, name)
            self._nodes[name] = RemoteNode(name, address, identity, certificates, self._check)
        if node:
            node.retire()
        return self._nodes[name]

    def _check(self, node: str, rpc: str, request: Any, answer: bytes) -> Any:
        return self.answers.check(node, rpc, request, answer)

    def call_many(self, names: Iterable[str], rpc: str, requests: Any, deadline: float | None) -> dict[str, Any]:
        """Send one RPC to many nodes in parallel; return by name the response, or the StorageError in its place.

        `requests` is the request, or one by name. Nodes have CALL_TIMEOUT seconds, less when the deadline is nearer.
        """
        seconds = CALL_TIMEOUT if deadline is None else max(min(CALL_TIMEOUT, deadline - time.monotonic()), 0.001)
        pending: dict[str, Any] = {}
        for name in names:
            request = requests[name] if isinstance(requests, Mapping) else requests
            try:
                pending[name] = self.get(name).start_call(rpc, request, seconds)
            except StorageError as error:
                pending[name] = error
        return {name: one if isinstance(one, StorageError) else one.outcome() for name, one in pending.items()}

    def unreachable(self) -> dict[str, str]:
        """Return the reason, by name, for every node that could not be reached when it was last tried."""
        return {name: reason for name, node in [*self._nodes.items()] if (reason := node.breaker.reason())}

    def close(self) -> None:
        self.addresses.close()
        for node in [*self._nodes.values()]:
            node.close()
