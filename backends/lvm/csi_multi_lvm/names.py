"""Names of logical volumes, and the handles that carry node and volume group.

csi-<leaf>    a volume                   csit-<leaf>   a snapshot that a copy of a volume is made from
csis-<leaf>   a snapshot                 csix-<leaf>   space that is cleaned before a volume grows by it
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from csi_multi.contract import FailedPrecondition, InvalidArgument, NotFound, WrongNode, ids

VOLUME = "csi-"
SNAPSHOT = "csis-"
COPIED = "csit-"
ANNEX = "csix-"
GROUP = re.compile(r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*")
DEVICE_NAME = 127 - len("_rimage_10_imeta")  # bytes: the kernel's limit, and what LVM appends


@dataclass(frozen=True, slots=True)
class Names:
    """Handles `<node>/<group>/<leaf>` of one instance."""

    node: str
    group: str

    def leaf(self, name: str) -> str:
        """Return the leaf for a requested name, hashed where handle or device name would be too long.

        Raises InvalidArgument when node and group leave no room for any.
        """
        for leaf in (ids.leaf(name), ids.leaf(name, 0)):
            if len(self.join(leaf)) <= ids.MAX_HANDLE and len(device_name(self.group, SNAPSHOT + leaf)) <= DEVICE_NAME:
                return leaf
        raise InvalidArgument(
            f"the names of node {self.node!r} and volume group {self.group!r} are too long together: a handle has "
            f"{ids.MAX_HANDLE} bytes for both; rename the group with vgrename"
        )

    def join(self, leaf: str) -> str:
        return f"{self.node}/{self.group}/{leaf}"

    def split(self, kind: str, handle: str) -> str:
        """Return the leaf. Raises NotFound, WrongNode, FailedPrecondition for another volume group."""
        node, group, leaf = parse(kind, handle)
        if node != self.node:
            raise WrongNode(f"{kind} {handle!r} lives on node {node!r}, this is {self.node!r}")
        if group != self.group:
            raise FailedPrecondition(
                f"{kind} {handle!r} lives in volume group {group!r}, but this instance is configured for "
                f"{self.group!r}; configure the group it was made in"
            )
        return leaf


def parse(kind: str, handle: str) -> tuple[str, str, str]:
    """Return (node, group, leaf). A handle of another shape was never made by anybody: raises NotFound."""
    node, _, rest = handle.partition("/")
    group, _, leaf = rest.partition("/")
    if not (ids.NODE.fullmatch(node) and GROUP.fullmatch(group) and ids.LEAF_SHAPE.fullmatch(leaf)):
        raise NotFound(f"{kind} {handle!r} does not exist")
    return node, group, leaf


def device_name(group: str, volume: str) -> str:
    """Return what the kernel calls the device of a logical volume: dm/name."""
    return f"{group.replace('-', '--')}-{volume.replace('-', '--')}"
