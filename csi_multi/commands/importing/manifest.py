"""The Kubernetes manifest of an imported volume's PersistentVolume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ...contract import ids
from ...contract.model import Segments, Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions:
    """The operator's options for the PersistentVolume."""

    storage_class: str = ""
    claim: tuple[str, str] | None = None  # namespace, name
    fs_type: str = ""
    block: bool = False
    access_mode: str = "ReadWriteOnce"


def manifest(driver: str, instance: str, volume: Volume, places: Sequence[Segments], options: ManifestOptions) -> str:
    """Return the manifest; `places` have the keys of node labels.

    Without a class storageClassName is empty, so that no default class is set.
    """
    source: dict[str, Any] = {"driver": driver, "volumeHandle": ids.join(instance, volume.handle)}
    if options.fs_type and not options.block:
        source["fsType"] = options.fs_type
    if volume.stamp.context:
        source["volumeAttributes"] = dict(volume.stamp.context)
    spec: dict[str, Any] = {
        "capacity": {"storage": str(volume.size)},
        "accessModes": [options.access_mode],
        "volumeMode": "Block" if options.block else "Filesystem",
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": options.storage_class,
        "csi": source,
    }
    if places:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_term(place) for place in places]}}
    if options.claim:
        namespace, name = options.claim
        reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}
        spec["claimRef"] = reference
    persistent_volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume.stamp.name},
        "spec": spec,
    }
    return yaml.safe_dump(persistent_volume, sort_keys=False)


def _term(place: Segments) -> dict[str, Any]:
    expressions = [{"key": key, "operator": "In", "values": [text]} for key, text in place.items()]
    return {"matchExpressions": expressions}
