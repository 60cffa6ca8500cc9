"""StorageClasses in a manifest file of several documents, with the line of every key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config.document import ConfigError, Document, read_documents
from ...contract.model import Segments
from ...contract.params import unknown
from ...core.filesystems import CLASS_KEY, OLD_CLASS_KEY

RESERVED = "csi.storage.k8s.io/"
# The keys with that prefix that external-provisioner accepts; it refuses a class with another one.
SECRETS = tuple(
    f"{RESERVED}{what}-secret-{part}"
    for what in ("provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand")
    for part in ("name", "namespace")
)
KEYS = (
    *("apiVersion", "kind", "metadata", "provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    *("allowVolumeExpansion", "mountOptions", "allowedTopologies"),
)
CHOICES = {"volumeBindingMode": ("Immediate", "WaitForFirstConsumer"), "reclaimPolicy": ("Delete", "Retain")}


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass, with the defaults that Kubernetes sets."""

    document: Document
    name: str
    provisioner: str
    parameters: Mapping[str, str]  # without the provisioner's own keys
    fs_type: str  # "": not in the class
    fs_type_keys: tuple[str, ...]  # of which the provisioner accepts one
    secrets: Mapping[str, str]
    mount_flags: tuple[str, ...]
    binding: str
    reclaim: str
    expandable: bool
    places: tuple[Segments, ...]  # of allowedTopologies, with keys as written
    foreign: tuple[str, ...]  # keys with the reserved prefix that the provisioner refuses

    def where(self, *path: str) -> str:
        """Return file and line of a key."""
        return str(self.document.error(path, "")).removesuffix(": ")


def read_storage_classes(file: Path) -> tuple[list[StorageClass], list[str]]:
    """Return the classes, and the kinds of the other documents in the file. Raises ConfigError."""
    found, others = [], []
    for document in read_documents(file):
        kind = str(document.values.get("kind", "without a kind"))
        if kind == "StorageClass":
            found.append(_parsed(document))
        else:
            others.append(kind)
    return found, others


def _parsed(document: Document) -> StorageClass:
    values = document.values
    for key in values:
        if key not in KEYS:
            raise document.error((key,), unknown("StorageClass", key, KEYS))
    for key, valid in CHOICES.items():
        if values.get(key, valid[0]) not in valid:
            raise document.error((key,), unknown(key, str(values[key]), valid, "value"))
    given = dict(_text_parameters(document, values.get("parameters") or {}))
    reserved = {key: given.pop(key) for key in [*given] if key.startswith(RESERVED)}
    fs_types = {CLASS_KEY: reserved[CLASS_KEY]} if CLASS_KEY in reserved else {}
    fs_types |= {key: given[key] for key in given if key.lower() == OLD_CLASS_KEY}
    return StorageClass(
        document=document,
        name=str((values.get("metadata") or {}).get("name", "")),
        provisioner=str(values.get("provisioner", "")),
        parameters=given,
        fs_type=next(iter(fs_types.values()), ""),
        fs_type_keys=tuple(fs_types),
        secrets={key: text for key, text in reserved.items() if key in SECRETS},
        mount_flags=tuple(str(flag) for flag in values.get("mountOptions") or ()),
        binding=values.get("volumeBindingMode", "Immediate"),
        reclaim=values.get("reclaimPolicy", "Delete"),
        expandable=bool(values.get("allowVolumeExpansion", False)),
        places=tuple(_places(document, values.get("allowedTopologies") or ())),
        foreign=tuple(key for key in reserved if key not in (CLASS_KEY, *SECRETS)),
    )


def _text_parameters(document: Document, parameters: Any) -> Iterator[tuple[str, str]]:
    """Yield the parameters. Raises ConfigError for values that are not strings, which Kubernetes refuses."""
    if not isinstance(parameters, dict):
        raise document.error(("parameters",), "'parameters' must be a mapping of strings")
    for key, value in parameters.items():
        if not isinstance(value, str):
            shown = str(value).lower() if isinstance(value, bool) else value
            text = f'parameters: {key!r} is not a string, so Kubernetes refuses the class; write {key}: "{shown}"'
            raise document.error(("parameters", key), text)
        yield key, value


def _places(document: Document, terms: Any) -> Iterator[Segments]:
    """Yield every combination of values that a term allows, as the provisioner does."""
    try:
        for term in terms:
            places: list[dict[str, str]] = [{}]
            for expression in term["matchLabelExpressions"]:
                key, values = expression["key"], expression["values"]
                places = [{**place, key: value} for place in places for value in values]
            yield from places
    except (TypeError, KeyError):
        rule = "a list of {matchLabelExpressions: [{key: KEY, values: [VALUE, ...]}]}"
        raise document.error(("allowedTopologies",), f"'allowedTopologies' must be {rule}") from None


def select(classes: list[StorageClass], name: str, file: Path) -> list[StorageClass]:
    """Return the class with this name, all for "". Raises ConfigError when there is none."""
    names = [one.name for one in classes]
    if not classes:
        raise ConfigError(f"{file}:1: the file contains no StorageClass")
    if name and name not in names:
        raise ConfigError(f"{file}:1: {unknown('--class', name, names, 'StorageClass')}")
    return [one for one in classes if name in ("", one.name)]
