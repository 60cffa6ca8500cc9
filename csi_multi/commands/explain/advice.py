"""The parts of a StorageClass that are for Kubernetes, and warnings where they do not fit the backend."""

from __future__ import annotations

from collections.abc import Iterator

from ...config.settings import Driver
from ...contract.backend import Backend, Expand, NodeLocal, Topology
from ...contract.model import Segments
from ...contract.params import unknown
from ...core import topology
from ...core.filesystems import CLASS_KEY
from .storageclass import SECRETS, StorageClass

WAIT_FOR_CONSUMER = "WaitForFirstConsumer"


def policies(storage_class: StorageClass) -> Iterator[str]:
    """Yield what Kubernetes and its sidecars do for this class."""
    yield {
        "Delete": "reclaimPolicy Delete: the volume and its data are deleted with the claim",
        "Retain": "reclaimPolicy Retain: the volume and its data stay when the claim is deleted",
    }[storage_class.reclaim]
    yield {
        WAIT_FOR_CONSUMER: f"volumeBindingMode {WAIT_FOR_CONSUMER}: created once a pod needs it, where the pod can run",
        "Immediate": "volumeBindingMode Immediate: created as soon as the claim exists, before a pod is scheduled",
    }[storage_class.binding]
    can = "can" if storage_class.expandable else "cannot"
    yield f"allowVolumeExpansion {str(storage_class.expandable).lower()}: claims {can} be expanded"
    if storage_class.secrets:
        names = ", ".join(f"{key.rpartition('/')[2]}: {text}" for key, text in storage_class.secrets.items())
        yield f"secrets that the sidecars and kubelet read, but not this command: {names}"


def warnings(storage_class: StorageClass, backend: Backend, driver: Driver, place: Segments) -> Iterator[str]:
    """Yield what does not fit together."""
    if storage_class.provisioner != driver.name:
        where = storage_class.where("provisioner")
        given = storage_class.provisioner
        yield f"{where}: provisioner {given!r} is not this driver, {driver.name!r}, so it never serves the class"
    for key in storage_class.foreign:
        text = unknown("parameters", key, (CLASS_KEY, *SECRETS))
        yield f"{storage_class.where('parameters', key)}: {text}, so external-provisioner refuses the class"
    yield from _secrets(storage_class)
    if constrained := topology.constrained(backend):
        yield from _binding(storage_class, backend)
    if storage_class.places and not constrained:
        yield f"{storage_class.where('allowedTopologies')}: volumes of this backend are reachable from all nodes"
    yield from _places(storage_class, backend, driver, place)
    if storage_class.expandable and not isinstance(backend, Expand):
        yield f"{storage_class.where('allowVolumeExpansion')}: this backend cannot expand volumes"
    yield from _fs_type_keys(storage_class)


def _fs_type_keys(storage_class: StorageClass) -> Iterator[str]:
    keys = storage_class.fs_type_keys
    for key in keys:
        if key != CLASS_KEY:
            yield f"{storage_class.where('parameters', key)}: {key!r} is a deprecated name; use {CLASS_KEY}"
    if len(keys) > 1:
        yield (
            f"{storage_class.where('parameters', keys[1])}: {keys[0]!r} and {keys[1]!r} both name the filesystem, so "
            "external-provisioner refuses the class"
        )


def _binding(storage_class: StorageClass, backend: Backend) -> Iterator[str]:
    if storage_class.binding == WAIT_FOR_CONSUMER:
        return
    what = "one node" if isinstance(backend, NodeLocal) else "one place"
    yield (
        f"{storage_class.where('volumeBindingMode')}: with Immediate binding the volume is created before its pod is "
        f"scheduled; a volume of this backend is reachable from {what} only, so the pod may never start; "
        f"use {WAIT_FOR_CONSUMER}"
    )


def _secrets(storage_class: StorageClass) -> Iterator[str]:
    for key in storage_class.secrets:
        stem, _, part = key.rpartition("-")
        other = f"{stem}-{'namespace' if part == 'name' else 'name'}"
        if other not in storage_class.secrets:
            yield f"{storage_class.where('parameters', key)}: {key!r} has no effect without {other}"


def _places(storage_class: StorageClass, backend: Backend, driver: Driver, place: Segments) -> Iterator[str]:
    prefix = f"{driver.name}/"
    known = topology.WELL_KNOWN_KEYS if isinstance(backend, Topology) and backend.well_known_keys else {}
    foreign = {key for allowed in storage_class.places for key in allowed if not key.startswith(prefix)}
    if keys := sorted(foreign - known.keys()):
        yield (
            f"{storage_class.where('allowedTopologies')}: key {keys[0]!r} does not belong to this driver, whose keys "
            f"start with {prefix!r}; no node has it, so no volume can be created"
        )
    own = [{_name(key, prefix): text for key, text in allowed.items()} for allowed in storage_class.places]
    wanted = {_name(key, prefix): text for key, text in place.items()}
    if wanted and own and not any(_agree(allowed, wanted) for allowed in own):
        where = storage_class.where("allowedTopologies")
        yield f"{where}: the given place is not allowed, so no pod of this class runs there"


def _name(key: str, prefix: str) -> str:
    return topology.WELL_KNOWN_KEYS.get(key, key.removeprefix(prefix))


def _agree(allowed: Segments, wanted: Segments) -> bool:
    return all(wanted.get(key, text) == text for key, text in allowed.items())
