"""Which nodes there are, and where their drivers listen: one small interface, and the list in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..config.cluster import NodeEntry
from ..contract.model import Segments


class Addresses(Protocol):
    """Raises Unavailable, from any method, as long as it cannot tell."""

    def names(self) -> list[str]:
        """Return the names of all nodes."""

    def of(self, node: str) -> str | None:
        """Return host:port of the driver on the node; None: no such node is known."""

    def segments(self, node: str) -> Segments | None:
        """Return where the node is, without the driver's prefix; None: not known."""

    def start(self) -> None:
        """Begin to watch for changes."""

    def close(self) -> None:
        """Release what is held."""


class Listed:
    """The nodes of the configuration file. A host name is looked up by gRPC, again for every new connection."""

    def __init__(self, nodes: Mapping[str, NodeEntry]) -> None:
        self._nodes = nodes

    def names(self) -> list[str]:
        return sorted(self._nodes)

    def of(self, node: str) -> str | None:
        return self._nodes[node].address if node in self._nodes else None

    def segments(self, node: str) -> Segments | None:
        """Only what the file says: `nodes: {NAME: {address, topology}}`; the node's name is always known."""
        entry = self._nodes.get(node)
        return {"node": node, **entry.topology} if entry and entry.topology else None

    def start(self) -> None:
        """A file does not change."""

    def close(self) -> None:
        """Nothing is held."""
