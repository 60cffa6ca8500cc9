"""Handles: "<node>/<leaf>", the same shape for volumes and snapshots."""

from __future__ import annotations

import re
from dataclasses import dataclass

from csi_multi.backend import missing
from csi_multi.errors import WrongNode
from csi_multi.ids import LEAF, NODE

LEAF_SHAPE = re.compile(rf"[a-z0-9](?:[-a-z0-9]{{0,{LEAF - 2}}}[a-z0-9])?")


def split(kind: str, handle: str) -> tuple[str, str]:
    """Return (node, leaf). A handle of another shape was never made here: raises NotFound."""
    node, _, leaf = handle.partition("/")
    if not NODE.fullmatch(node) or not LEAF_SHAPE.fullmatch(leaf):
        raise missing(kind, handle)
    return node, leaf


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles of one node."""

    node: str

    def join(self, leaf: str) -> str:
        return f"{self.node}/{leaf}"

    def leaf(self, kind: str, handle: str) -> str:
        """Return the leaf. Raises NotFound, or WrongNode: what lives elsewhere must not seem gone."""
        node, leaf = split(kind, handle)
        if node != self.node:
            raise WrongNode(f"{kind} {handle!r} lives on node {node!r}, this is node {self.node!r}; ask that node")
        return leaf
