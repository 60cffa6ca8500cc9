"""Handles: "<node>/<leaf>", the same shape for volumes and snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import WrongNode, split_local


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles of one node."""

    node: str

    def join(self, leaf: str) -> str:
        return f"{self.node}/{leaf}"

    def leaf(self, kind: str, handle: str) -> str:
        """Return the leaf. Raises NotFound, or WrongNode: what lives elsewhere must not seem gone."""
        node, leaf = split_local(kind, handle)
        if node != self.node:
            raise WrongNode(f"{kind} {handle!r} lives on node {node!r}, this is node {self.node!r}; ask that node")
        return leaf
