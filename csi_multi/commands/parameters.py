"""`csi-multi parameters KIND`: the reference of a backend's schemas, in Markdown. docs/parameters.md is made of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from importlib.metadata import entry_points

from ..config.document import ConfigError
from ..contract.backend import GROUP, Backend
from ..contract.params import Schema, camel, describe, fields, keys_of, unknown
from ..loading.loader import backend_classes, duplicate_providers

KEPT = """A key that is left out stays as it is on the volume. Where `default` is a value, it gives the storage's
default, not the StorageClass's."""

# (name in the class of the backend, title, paragraph below it, how a field is written there)
SECTIONS: tuple[tuple[str, str, str, Callable[[str], str]], ...] = (
    ("Config", "Configuration file, in `backends.NAME:` together with `kind: {kind}`", "", str),
    ("Parameters", "StorageClass", "", camel),
    ("SnapshotParameters", "VolumeSnapshotClass", "", camel),
    ("GroupSnapshotParameters", "VolumeGroupSnapshotClass", "", camel),
    ("MutableParameters", "VolumeAttributesClass", KEPT, camel),
)


def parameters(kind: str) -> int:
    """Print the reference of an installed kind. Raises ConfigError for an unknown or broken one."""
    kinds = {point.name for point in entry_points(group=GROUP)}
    if kind not in kinds:
        raise ConfigError(unknown("parameters", kind, kinds, "kind"))
    print(reference(kind, _backend_class(kind)), end="")
    return 0


def _backend_class(kind: str) -> type[Backend]:
    if reason := duplicate_providers(kind):
        raise _unusable(kind, reason)
    # A package that prints during its import must not change the output.
    with contextlib.redirect_stdout(sys.stderr):
        classes, broken = backend_classes([kind])
    if kind in broken:
        raise _unusable(kind, broken[kind])
    return classes[kind]


def _unusable(kind: str, reason: str) -> ConfigError:
    return ConfigError(f"parameters: backend {kind!r} cannot be used: {reason}")


def reference(kind: str, backend: type[Backend]) -> str:
    """Return the reference of a backend: a title, and a table for every schema that it has."""
    parts = [f"## Backend `{kind}`"]
    for name, title, paragraph, rename in SECTIONS:
        schema: type[Schema] = getattr(backend, name)
        if schema is not Schema:
            parts += [f"{title.format(kind=kind)}:", *filter(None, [paragraph]), table(schema, rename).rstrip("\n")]
    return "\n\n".join(parts) + "\n"


def table(schema: type[Schema], rename: Callable[[str], str]) -> str:
    """Return a Markdown table of a schema's fields."""
    many = {field.name: keys_of(field).replace(".*", "_N").replace("|", "`, `") for field in fields(schema)}
    rows = [
        f"| `{many[name] or rename(name)}` | {'string' if many[name] else kind} | {default} | {escaped(text)} |"
        for name, kind, default, text in describe(schema)
    ]
    head = ["| name | type | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def escaped(text: str) -> str:
    """Return text in which Markdown sees no HTML."""
    return text.replace("<", "&lt;")
