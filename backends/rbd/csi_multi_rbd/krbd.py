"""Images that the kernel maps (krbd), as /sys/block/rbd*/device shows them.

The kernel reuses names like rbd0, so an image is found only by its attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from csi_multi.host.blockdev import BlockDevices

from .ceph_rules import merge_options
from .config import Config
from .resources import MappedImage

DISK = re.compile(r"rbd\d+")
NO_UDEV = "noudev"  # devtmpfs creates the device nodes; rbd would wait for udev, which containers lack
# Each mapping has a connection to the cluster of its own, since the blocklist works by connection: if several mappings
# share one, all of them end when another node takes over one image, or when this node does after an unmap that did not
# reach the cluster.
OWN_CONNECTION = "noshare"
SHARED_CONNECTION = "share"
VERSION_2 = "ms_mode=prefer-crc"  # kernels default to version 1 of the protocol; Linux 5.11 has both
_PORT = re.compile(r":(\d+)(?:/\d+)?$")
_PORT_OF_VERSION_1 = "6789"


def find(kernel: BlockDevices, config: Config, image: str) -> Iterator[MappedImage]:
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
            if number and image_id:  # else it is being unmapped
                yield MappedImage(
                    kind="krbd",
                    disk=disk,
                    number=number,
                    image_id=image_id,
                    proof={f"device/{name}": text for name, text in (*wanted.items(), ("image_id", image_id)) if text},
                    client=kernel.text(disk, "device/client_addr") or "",
                )


def map_options(monitors: Sequence[str], given: tuple[str, ...], location: str = "") -> tuple[str, ...]:
    """Return the options to map with: the given ones, and defaults for the others.

    `location` is the node's CRUSH location: the kernel reads from the copy that is nearest to it.
    """
    defaults = [NO_UDEV]
    defaults += [] if SHARED_CONNECTION in given else [OWN_CONNECTION]
    defaults += [] if any(map(_is_version_1, monitors)) else [VERSION_2]
    defaults += ["read_from_replica=localize", f"crush_location={location}"] if location else []
    return merge_options(tuple(defaults), given)


def _is_version_1(monitor: str) -> bool:
    """Return whether rbd uses version 1 of the protocol for this address. Without a version the port decides."""
    if "v1:" in monitor:
        return True
    port = _PORT.search(monitor)
    return "v2:" not in monitor and (port is None or port[1] == _PORT_OF_VERSION_1)
