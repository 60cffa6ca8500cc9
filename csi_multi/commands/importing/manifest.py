"""The PersistentVolume of an imported volume, as Kubernetes reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ...contract import ids
from ...contract.model import Segments, Volume
from ...core import topology


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions:
    """What the operator says about it."""

    storage_class: str = ""
    claim: tuple[str, str] | None = None  # namespace, name
    fs_type: str = ""
    block: bool = False
    access_mode: str = "ReadWriteOnce"


def manifest(driver: str, instance: str, volume: Volume, places: Sequence[Segments], wish: ManifestOptions) -> str:
    """Return the manifest. Without a class its storageClassName is empty: then no class is a default for it."""
    source: dict[str, Any] = {"driver": driver, "volumeHandle": ids.join(instance, volume.handle)}
    if wish.fs_type and not wish.block:
        source["fsType"] = wish.fs_type
    if volume.stamp.context:
        source["volumeAttributes"] = dict(volume.stamp.context)
    spec: dict[str, Any] = {
        "capacity": {"storage": str(volume.size)},
        "accessModes": [wish.access_mode],
        "volumeMode": "Block" if wish.block else "Filesystem",
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": wish.storage_class,
        "csi": source,
    }
    if places:
        terms = [_term(topology.add_prefix(driver, place)) for place in places]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    if wish.claim:
        namespace, name = wish.claim
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}
        spec["claimRef"] = reference
    whole = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume.stamp.name}, "spec": spec}
    return yaml.safe_dump(whole, sort_keys=False)


def _term(place: Segments) -> dict[str, Any]:
    expressions = [{"key": key, "operator": "In", "values": [text]} for key, text in place.items()]
    return {"matchExpressions": expressions}
