"""What of a StorageClass is meant for Kubernetes, and where it does not fit the backend."""

from __future__ import annotations

from collections.abc import Iterator

from ...config.settings import Driver
from ...contract.backend import Backend, Expand, NodeLocal
from ...contract.model import Segments
from ...contract.params import unknown
from ...core import topology
from .storageclass import FS_TYPE, OLD_FS_TYPES, SECRETS, StorageClass

WAIT_FOR_CONSUMER = "WaitForFirstConsumer"


def policies(one: StorageClass) -> Iterator[str]:
    """Say what Kubernetes and its sidecars do by this class."""
    yield {
        "Delete": "reclaimPolicy Delete: the volume and its data are deleted with the claim",
        "Retain": "reclaimPolicy Retain: the volume and its data stay when the claim is deleted",
    }[one.reclaim]
    yield {
        WAIT_FOR_CONSUMER: f"volumeBindingMode {WAIT_FOR_CONSUMER}: it is made once a pod needs it, where that pod can run",
        "Immediate": "volumeBindingMode Immediate: it is made as soon as there is a claim, before any pod is placed",
    }[one.binding]
    yield f"allowVolumeExpansion {str(one.expandable).lower()}: claims can{'' if one.expandable else 'not'} grow"
    if one.secrets:
        names = ", ".join(f"{key.rpartition('/')[2]}: {text}" for key, text in one.secrets.items())
        yield f"secrets, read by the sidecars and kubelet, not here: {names}"


def warnings(one: StorageClass, backend: Backend, driver: Driver, place: Segments) -> Iterator[str]:
    """Say what does not fit together."""
    if one.provisioner != driver.name:
        where = one.where("provisioner")
        yield f"{where}: provisioner {one.provisioner!r} is not this driver, {driver.name!r}: it never sees the claims"
    for key in one.foreign:
        text = unknown("parameters", key, (FS_TYPE, *SECRETS))
        yield f"{one.where('parameters', key)}: {text}; external-provisioner refuses the class"
    yield from _secrets(one)
    if constrained := topology.constrained(backend):
        yield from _binding(one, backend)
    if one.places and not constrained:
        yield f"{one.where('allowedTopologies')}: this backend's volumes are reached from everywhere, so it only limits"
    yield from _places(one, driver, place)
    if one.expandable and not isinstance(backend, Expand):
        yield f"{one.where('allowVolumeExpansion')}: this backend's volumes cannot grow"
    for key in OLD_FS_TYPES:
        if key in one.parameters:
            yield f"{one.where('parameters', key)}: {key!r} is an old name; write {FS_TYPE}"


def _binding(one: StorageClass, backend: Backend) -> Iterator[str]:
    if one.binding == WAIT_FOR_CONSUMER:
        return
    what = "one node" if isinstance(backend, NodeLocal) else "one place"
    yield (
        f"{one.where('volumeBindingMode')}: with Immediate binding the volume's place is chosen before the pod's, and "
        f"a volume of this backend is reached from {what} only: the pod may never start; use {WAIT_FOR_CONSUMER}"
    )


def _secrets(one: StorageClass) -> Iterator[str]:
    for key in one.secrets:
        stem, _, part = key.rpartition("-")
        other = f"{stem}-{'namespace' if part == 'name' else 'name'}"
        if other not in one.secrets:
            yield f"{one.where('parameters', key)}: {key!r} has a meaning only together with {other}"


def _places(one: StorageClass, driver: Driver, place: Segments) -> Iterator[str]:
    prefix = f"{driver.name}/"
    keys = sorted({key for allowed in one.places for key in allowed if not key.startswith(prefix)})
    if keys:
        yield (
            f"{one.where('allowedTopologies')}: key {keys[0]!r} is not of this driver, whose keys start with "
            f"{prefix!r}: no node has it, so no volume can be made"
        )
    wanted = {key if key.startswith(prefix) else prefix + key: text for key, text in place.items()}
    if wanted and one.places and not any(_agree(allowed, wanted) for allowed in one.places):
        yield f"{one.where('allowedTopologies')}: the place asked for is not allowed: no pod of this class runs there"


def _agree(allowed: Segments, wanted: Segments) -> bool:
    return all(wanted.get(key, text) == text for key, text in allowed.items())
