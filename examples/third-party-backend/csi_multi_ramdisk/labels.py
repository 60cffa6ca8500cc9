"""Labels: the stamp and the format state of a volume, stored beside its data; and the handles of one node."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from csi_multi.contract import Blank, FailedPrecondition, Stamp, WrongNode, ids, missing

from .client import Client


class Label(msgspec.Struct, frozen=True, kw_only=True):
    stamp: Stamp
    blank: Blank


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of one driver in one cluster."""

    client: Client
    driver: str
    cluster: str

    def find(self, leaf: str) -> Label | None:
        """Return a label, also a foreign one; None if there is none. Raises FailedPrecondition when it is damaged."""
        data = self.client.read_label(leaf)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=Label)
        except msgspec.DecodeError as error:
            file = self.client.label_file(leaf)
            raise FailedPrecondition(f"label {file} is damaged: {error}; move it away") from None

    def read(self, leaf: str) -> Label:
        """Return the label of an own volume. Raises NotFound; FailedPrecondition when the volume is foreign."""
        label = self.find(leaf)
        if label is None:
            raise missing("volume", leaf)
        if (label.stamp.driver, label.stamp.cluster) != (self.driver, self.cluster):
            owner = f"driver {label.stamp.driver!r} in cluster {label.stamp.cluster!r}"
            raise FailedPrecondition(f"volume {leaf!r} belongs to {owner}; give each driver its own directory")
        return label

    def write(self, leaf: str, label: Label) -> None:
        self.client.write_label(leaf, msgspec.json.encode(label))


@dataclass(frozen=True, slots=True)
class Handles:
    """Handles `<node>/<leaf>`, as node-local volumes need them."""

    node: str

    def handle(self, leaf: str) -> str:
        return f"{self.node}/{leaf}"

    def leaf(self, handle: str) -> str:
        """Return the leaf of a handle. Raises NotFound, and WrongNode for a handle of another node."""
        node, leaf = ids.split_local("volume", handle)
        if node != self.node:
            raise WrongNode(
                f"volume {handle!r} is on node {node!r}, and this is node {self.node!r}; "
                "send the request to the driver on that node"
            )
        return leaf
