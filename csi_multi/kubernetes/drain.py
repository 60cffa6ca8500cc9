"""The preStop hook that keeps the driver running on a node that is drained, until its volumes are unmounted.

Without the driver the kubelet cannot unmount, and Kubernetes waits six minutes before it detaches by force. When only
the pod is replaced, nothing has to wait. The staged volumes are read from the files that the kubelet keeps in its
directory, so the API is asked only whether the node is drained.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec

from .api import API_ERRORS, KubernetesApi, WatchExpired
from .objects import NodeObject

log = logging.getLogger(__name__)

# Taints of a node that is emptied: by kubectl drain, by an operator who declares it shut down, by Karpenter, by Cluster
# Autoscaler.
DRAIN_TAINTS = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/out-of-service",
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
    }
)
POLL_INTERVAL = 1.0  # seconds


class VolumeData(msgspec.Struct):
    """The kubelet's vol_data.json."""

    driver: str = msgspec.field(default="", name="driverName")


def is_drained(api: KubernetesApi, node: str) -> bool:
    """Whether the node is being drained; False also when the API does not answer."""
    try:
        found = api.get(f"/api/v1/nodes/{node}", NodeObject)
    except (*API_ERRORS, WatchExpired) as error:
        log.warning("node %s: the Kubernetes API cannot be read: %s; not waiting for the node's volumes", node, error)
        return False
    return found.spec.unschedulable or any(taint.key in DRAIN_TAINTS for taint in found.spec.taints)


def staged_volumes(kubelet: Path, driver: str) -> list[str]:
    """Return the driver's volumes that the kubelet has staged: names of directories, or of raw block volumes."""
    plugins = kubelet / "plugins/kubernetes.io/csi"
    filesystems = [file.parent.name for file in (plugins / driver).glob("*/vol_data.json")]
    block_files = plugins.glob("volumeDevices/*/data/vol_data.json")
    blocks = [file.parents[1].name for file in block_files if _driver_of(file) == driver]
    return sorted(filesystems + blocks)


def wait_until_unstaged(api: KubernetesApi, node: str, driver: str, kubelet: Path, seconds: float) -> bool:
    """Return True when nothing is staged, or the node is not drained; False when the time is over."""
    if not is_drained(api, node):
        return True
    deadline = time.monotonic() + seconds
    while volumes := staged_volumes(kubelet, driver):
        if time.monotonic() >= deadline:
            log.warning("node %s: still staged after %g s: %s", node, seconds, ", ".join(volumes))
            return False
        time.sleep(POLL_INTERVAL)
    return True


def _driver_of(file: Path) -> str:
    try:
        return msgspec.json.decode(file.read_bytes(), type=VolumeData).driver
    except (OSError, msgspec.DecodeError):
        return ""
