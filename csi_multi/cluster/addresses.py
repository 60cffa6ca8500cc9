"""The nodes of the cluster and the addresses of their drivers: the interface, and the list in the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..config.cluster import NodeEntry
from ..contract.model import Segments


class NodeAddresses(Protocol):
    """Every method raises Unavailable while the nodes are not known."""

    def names(self) -> list[str]:
        """Return the names of all nodes."""

    def address(self, node: str) -> str | None:
        """Return host:port of the driver on the node; None: no such node is known."""

    def segments(self, node: str) -> Segments | None:
        """Return the node's topology segments, without the driver's prefix; None: not known."""

    def start(self) -> None:
        """Begin to watch for changes."""

    def close(self) -> None:
        """Release all resources."""


class ConfiguredNodes:
    """The nodes of the configuration file. gRPC resolves a host name again for every new connection."""

    def __init__(self, nodes: Mapping[str, NodeEntry]) -> None:
        self._nodes = nodes

    def names(self) -> list[str]:
        return sorted(self._nodes)

    def address(self, node: str) -> str | None:
        return self._nodes[node].address if node in self._nodes else None

    def segments(self, node: str) -> Segments | None:
        """Return what `nodes: {NAME: {address, topology}}` in the file says, and the node's name."""
        entry = self._nodes.get(node)
        return {"node": node, **entry.topology} if entry and entry.topology else None

    def start(self) -> None:
        """Do nothing: the list does not change."""

    def close(self) -> None:
        """Do nothing."""
