"""The hook that keeps the driver on a node that is drained, until its volumes are unmounted.

Without the driver the kubelet cannot unmount, and Kubernetes waits six minutes before it detaches by force. A pod
that is replaced on a node that stays does not wait. What is staged is told by the files that the kubelet keeps below
its directory for as long as it has a volume there, so the API is asked for one thing: whether the node is drained.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec

from .api import TROUBLE, Api, Expired
from .objects import Node

log = logging.getLogger(__name__)

# Who empties nodes: kubectl drain, Karpenter, Cluster Autoscaler, an operator who declares the node shut down.
LEAVING = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/out-of-service",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
    }
)
LOOK = 1.0  # seconds between two looks


class VolumeData(msgspec.Struct):
    """The kubelet's vol_data.json."""

    driver: str = msgspec.field(default="", name="driverName")


def leaving(api: Api, node: str) -> bool:
    """Whether the node is being emptied; False, too, when the API does not say."""
    try:
        found = api.get(f"/api/v1/nodes/{node}", Node)
    except (*TROUBLE, Expired) as error:
        log.warning("node %s: the Kubernetes API: %s; not waiting for its volumes", node, error)
        return False
    return found.spec.unschedulable or any(taint.key in LEAVING for taint in found.spec.taints)


def staged(kubelet: Path, driver: str) -> list[str]:
    """Return what the kubelet has staged of the driver's: directories of filesystems, names of raw block volumes."""
    plugins = kubelet / "plugins/kubernetes.io/csi"
    filesystems = [file.parent.name for file in (plugins / driver).glob("*/vol_data.json")]
    blocks = [
        file.parents[1].name for file in plugins.glob("volumeDevices/*/data/vol_data.json") if _owner(file) == driver
    ]
    return sorted(filesystems + blocks)


def wait(api: Api, node: str, driver: str, kubelet: Path, seconds: float) -> bool:
    """Return when nothing is staged, or the node is not drained; False when the time was over."""
    if not leaving(api, node):
        return True
    end = time.monotonic() + seconds
    while found := staged(kubelet, driver):
        if time.monotonic() >= end:
            log.warning("node %s: still staged: %s", node, ", ".join(found))
            return False
        time.sleep(LOOK)
    return True


def _owner(file: Path) -> str:
    try:
        return msgspec.json.decode(file.read_bytes(), type=VolumeData).driver
    except (OSError, msgspec.DecodeError):
        return ""
