"""Images that the kernel maps, as /sys/block/rbd*/device shows them.

Names like rbd0 pass from image to image, so an image is found by its attributes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from csi_multi.host.blockdev import BlockDevices

from .config import Config
from .mapped import Mapped
from .options import merged

DISK = re.compile(r"rbd\d+")
NO_UDEV = "noudev"  # devtmpfs makes the nodes; rbd would wait for a udev that containers lack
# A connection to the cluster for each mapping. The cluster shuts out connections: one that several mappings share ends
# them all when another node takes over one image, or this one does after an unmap that the cluster did not hear of.
OWN_CONNECTION = "noshare"
SHARED_CONNECTION = "share"
VERSION_2 = "ms_mode=prefer-crc"  # the kernel's default is version 1 of the protocol; Linux 5.11 has both
_PORT = re.compile(r":(\d+)(?:/\d+)?$")
_PORT_OF_VERSION_1 = "6789"


def mapped(kernel: BlockDevices, config: Config, image: str) -> Iterator[Mapped]:
    """Yield the mappings of an image of this instance."""
    wanted = {
        "cluster_fsid": config.fsid,
        "pool": config.pool,
        "pool_ns": config.namespace,
        "name": image,
        "current_snap": "-",
    }
    for disk in kernel.disks():
        if DISK.fullmatch(disk) and all(kernel.text(disk, f"device/{name}") == text for name, text in wanted.items()):
            number, image_id = kernel.text(disk, "dev"), kernel.text(disk, "device/image_id")
            if number and image_id:  # else it is on its way off
                yield Mapped(
                    kind="krbd",
                    disk=disk,
                    number=number,
                    image_id=image_id,
                    proof={f"device/{name}": text for name, text in (*wanted.items(), ("image_id", image_id)) if text},
                    client=kernel.text(disk, "device/client_addr") or "",
                )


def options(monitors: Sequence[str], given: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to map with: what is given, and what that leaves open."""
    ours = [NO_UDEV]
    ours += [] if SHARED_CONNECTION in given else [OWN_CONNECTION]
    ours += [] if any(map(_speaks_version_1, monitors)) else [VERSION_2]
    return merged(tuple(ours), given)


def _speaks_version_1(monitor: str) -> bool:
    """Whether an address has version 1 of the protocol, as rbd takes it: one without a version, by its port."""
    if "v1:" in monitor:
        return True
    port = _PORT.search(monitor)
    return "v2:" not in monitor and (port is None or port[1] == _PORT_OF_VERSION_1)
