"""Which releases a cluster is built of. The chart says those of the sidecars."""

from __future__ import annotations

from pathlib import Path

import yaml

PROJECT = Path(__file__).resolve().parents[3]
VALUES = yaml.safe_load((PROJECT / "config/helm/csi-multi/values.yaml").read_text())
KUBERNETES, LIBRARIES = "v1.36.3", "v0.36.3"
CONTAINERD = "v2.3.7"
# The program of each sidecar, and the name of its image in the chart.
SIDECAR_IMAGES: dict[str, str] = {
    program: VALUES["sidecars"][value]["image"]
    for program, value in {
        "csi-provisioner": "provisioner",
        "csi-resizer": "resizer",
        "csi-snapshotter": "snapshotter",
        "csi-node-driver-registrar": "registrar",
        "livenessprobe": "livenessprobe",
    }.items()
}


def release(program: str) -> str:
    """Return the release of a sidecar."""
    return SIDECAR_IMAGES[program].rpartition(":")[2]


# It is no part of the chart, and released with the snapshotter.
SIDECAR_IMAGES["snapshot-controller"] = f"registry.k8s.io/sig-storage/snapshot-controller:{release('csi-snapshotter')}"
