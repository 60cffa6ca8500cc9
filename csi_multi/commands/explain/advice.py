"""The parts of a StorageClass that are for Kubernetes, and warnings where they do not fit the backend."""

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
    """Yield what Kubernetes and its sidecars do for this class."""
    yield {
        "Delete": "reclaimPolicy Delete: the volume and its data are deleted with the claim",
        "Retain": "reclaimPolicy Retain: the volume and its data stay when the claim is deleted",
    }[one.reclaim]
    yield {
        WAIT_FOR_CONSUMER: f"volumeBindingMode {WAIT_FOR_CONSUMER}: created once a pod needs it, where the pod can run",
        "Immediate": "volumeBindingMode Immediate: created as soon as the claim exists, before a pod is scheduled",
    }[one.binding]
    yield f"allowVolumeExpansion {str(one.expandable).lower()}: claims can{'' if one.expandable else 'not'} be expanded"
    if one.secrets:
        names = ", ".join(f"{key.rpartition('/')[2]}: {text}" for key, text in one.secrets.items())
        yield f"secrets that the sidecars and kubelet read, but not this command: {names}"


def warnings(one: StorageClass, backend: Backend, driver: Driver, place: Segments) -> Iterator[str]:
    """Yield what does not fit together."""
    if one.provisioner != driver.name:
        where = one.where("provisioner")
        yield f"{where}: provisioner {one.provisioner!r} is not this driver, {driver.name!r}, which will get no claims"
    for key in one.foreign:
        text = unknown("parameters", key, (FS_TYPE, *SECRETS))
        yield f"{one.where('parameters', key)}: {text}, so external-provisioner refuses the class"
    yield from _secrets(one)
    if constrained := topology.constrained(backend):
        yield from _binding(one, backend)
    if one.places and not constrained:
        yield f"{one.where('allowedTopologies')}: volumes of this backend are reachable from all nodes"
    yield from _places(one, driver, place)
    if one.expandable and not isinstance(backend, Expand):
        yield f"{one.where('allowVolumeExpansion')}: this backend cannot expand volumes"
    for key in OLD_FS_TYPES:
        if key in one.parameters:
            yield f"{one.where('parameters', key)}: {key!r} is a deprecated name; use {FS_TYPE}"


def _binding(one: StorageClass, backend: Backend) -> Iterator[str]:
    if one.binding == WAIT_FOR_CONSUMER:
        return
    what = "one node" if isinstance(backend, NodeLocal) else "one place"
    yield (
        f"{one.where('volumeBindingMode')}: with Immediate binding the volume is created before its pod is scheduled; "
        f"a volume of this backend is reachable from {what} only, so the pod may never start; use {WAIT_FOR_CONSUMER}"
    )


def _secrets(one: StorageClass) -> Iterator[str]:
    for key in one.secrets:
        stem, _, part = key.rpartition("-")
        other = f"{stem}-{'namespace' if part == 'name' else 'name'}"
        if other not in one.secrets:
            yield f"{one.where('parameters', key)}: {key!r} has no effect without {other}"


def _places(one: StorageClass, driver: Driver, place: Segments) -> Iterator[str]:
    prefix = f"{driver.name}/"
    keys = sorted({key for allowed in one.places for key in allowed if not key.startswith(prefix)})
    if keys:
        yield (
            f"{one.where('allowedTopologies')}: key {keys[0]!r} does not belong to this driver, whose keys start with "
            f"{prefix!r}; no node has it, so no volume can be created"
        )
    wanted = {key if key.startswith(prefix) else prefix + key: text for key, text in place.items()}
    if wanted and one.places and not any(_agree(allowed, wanted) for allowed in one.places):
        yield f"{one.where('allowedTopologies')}: the given place is not allowed, so no pod of this class runs there"


def _agree(allowed: Segments, wanted: Segments) -> bool:
    return all(wanted.get(key, text) == text for key, text in allowed.items())
