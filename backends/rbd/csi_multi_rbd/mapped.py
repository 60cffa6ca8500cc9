"""An image that is mapped on this node: what krbd.py and nbd.py find, and devices.py works with."""

from __future__ import annotations

from dataclasses import dataclass

from csi_multi.contract import Strings

from .rbd import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    kind: Kind
    disk: str  # its name in /sys/block
    number: str
    image_id: str
    proof: Strings  # see model.Device
    client: str = ""  # the address by which the cluster knows who maps it; "": not told
    exclusive: bool = False
    served: bool = True  # False: the process that should do it is gone
