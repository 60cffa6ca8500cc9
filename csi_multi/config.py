"""The driver's configuration: one YAML file, checked whole before anything starts.

Every error names the file, the line, the key, the rule, and the nearest valid key.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml

from . import config_cluster, ids
from .config_cluster import Cluster
from .params import Doc, Schema, explain, fields, unknown

S = TypeVar("S", bound=Schema)
SECTIONS = ("driver", "backends", "cluster")
Keys = tuple[str, ...]

# RFC 1035 labels in lower case, because it prefixes topology keys; letters at both ends for csi-sanity.
_WORD = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
NAME = rf"^(?=.{{2,63}}\Z)(?=[a-z]){_WORD}(?:\.{_WORD})*(?<=[a-z])\Z"
LABEL = r"^[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?\Z"


class ConfigError(Exception):
    """The file cannot be used; the text says where and why."""


class Driver(Schema, frozen=True, kw_only=True):
    """The `driver:` section."""

    name: Annotated[str, Doc("driver name, as in StorageClass.provisioner", pattern=NAME)]
    default_backend: Annotated[str, Doc("instance for StorageClasses without `backend`; none: they are refused")] = ""
    default_fs_type: Annotated[
        Literal["ext4", "xfs", "btrfs"], Doc("filesystem of volumes whose StorageClass names none; fixed at creation")
    ] = "ext4"
    cluster: Annotated[str, Doc("stamped on every resource, so that clusters can share storage", pattern=LABEL)] = (
        "default"
    )
    node: Annotated[str, Doc("this node's name; default: the host name. Volume ids contain it", pattern=LABEL)] = (
        msgspec.field(default_factory=socket.gethostname)
    )
    alpha: Annotated[bool, Doc("also advertise RPCs that CSI 1.13 still calls alpha")] = False
    workers: Annotated[int, Doc("threads that serve RPCs; a quarter is kept for Probe and stats", ge=8, le=2048)] = 64
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Doc("least severe level logged")] = "info"
    log_style: Annotated[Literal["auto", "json", "console"], Doc("auto: console on a terminal, else JSON")] = "auto"
    check_seconds: Annotated[int, Doc("seconds between checks of each instance's storage", ge=1)] = 30
    reload_seconds: Annotated[int, Doc("seconds between looks at this file for changes; 0: at SIGHUP only", ge=0)] = 10
    metrics: Annotated[str, Doc("HOST:PORT for Prometheus metrics, /healthz and /readyz; empty: none")] = ""
    survey_seconds: Annotated[
        int, Doc("seconds between counts of volumes and room for the metrics; 0: never", ge=0)
    ] = 300


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file with the line of every key."""

    file: Path
    values: Mapping[str, Any]
    lines: Mapping[Keys, int]

    def error(self, path: Keys, text: str) -> ConfigError:
        """Make the error for a key; a path without a line of its own takes its parent's."""
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in self.lines), ())
        return ConfigError(f"{self.file}:{self.lines.get(known, 1)}: {text}")

    def section(self, path: Keys, schema: type[S], values: Mapping[str, Any], also: Keys = ()) -> S:
        """Turn one mapping of the file into its schema; `also` are valid keys beside it. Raises ConfigError."""
        where = ".".join(path)
        valid = [field.name for field in fields(schema)]
        for key in values:
            if key not in valid:
                raise self.error((*path, key), unknown(where, key, [*valid, *also]))
        try:
            return msgspec.convert(values, schema)
        except msgspec.ValidationError as error:
            key = str(error).partition("`$.")[2].rstrip("`").partition(".")[0].partition("[")[0]
            raise self.error((*path, key), explain(error, where, schema)) from None


@dataclass(frozen=True, slots=True)
class InstanceSection:
    """One entry of `backends:`; its keys are checked once the kind's schema is known."""

    name: str
    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Config:
    document: Document
    driver: Driver
    instances: tuple[InstanceSection, ...]
    cluster: Cluster = Cluster()  # noqa: RUF009 - frozen


def load(file: Path, node: str = "") -> Config:
    """Read and check the file; `node` replaces driver.node, for a file that all nodes share. Raises ConfigError."""
    document = read(file)
    for key in document.values:
        if key not in SECTIONS:
            raise document.error((key,), unknown("top level", key, SECTIONS))
    section = _mapping(document, ("driver",), document.values.get("driver"))
    driver = document.section(("driver",), Driver, {**section, "node": node} if node else section)
    backends = _mapping(document, ("backends",), document.values.get("backends"))
    instances = tuple(_instance(document, name, backends[name]) for name in backends)
    if driver.default_backend and driver.default_backend not in backends:
        hint = unknown("driver.default_backend", driver.default_backend, backends, "instance")
        raise document.error(("driver", "default_backend"), hint)
    if not ids.NODE.fullmatch(driver.node):
        raise document.error(("driver", "node"), f"driver.node: host name {driver.node!r} does not fit; give 'node'")
    cluster = Cluster()
    if "cluster" in document.values:
        cluster = config_cluster.parse(document, _mapping(document, ("cluster",), document.values["cluster"]))
    return Config(document, driver, instances, cluster)


def read(file: Path) -> Document:
    """Parse YAML, keeping lines; a key given twice is an error. Raises ConfigError."""
    with _explained(file):
        loader = yaml.SafeLoader(file.read_text())
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{file}:1: expected a mapping with the keys 'driver' and 'backends'")
        return _document(file, loader, node)


def documents(file: Path) -> Iterator[Document]:
    """Parse YAML of any number of mappings. Raises ConfigError."""
    with _explained(file):
        loader = yaml.SafeLoader(file.read_text())
        while loader.check_node():
            node = loader.get_node()
            if isinstance(node, yaml.MappingNode):
                yield _document(file, loader, node)
            elif node and node.tag != "tag:yaml.org,2002:null":  # nothing between two lines of ---
                raise ConfigError(f"{file}:{node.start_mark.line + 1}: expected a mapping of keys to values")


def _document(file: Path, loader: yaml.SafeLoader, node: yaml.MappingNode) -> Document:
    lines: dict[Keys, int] = {}
    _walk(file, loader, node, (), lines, (node,))
    return Document(file, loader.construct_document(node), lines)


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{file}:1: not valid YAML: {error}") from None


def _walk(
    file: Path,
    loader: yaml.SafeLoader,
    node: yaml.MappingNode,
    path: Keys,
    lines: dict[Keys, int],
    parents: tuple[yaml.Node, ...],
) -> None:
    """Note the line of every key. A key that `<<` merges in has none: it may be overridden."""
    for key_node, value in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if key_node.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{file}:{line}: key {key!r} is not text; put it in quotes")
        if (*path, key) in lines:
            raise ConfigError(f"{file}:{line}: key {key!r} is given twice, first on line {lines[*path, key]}")
        if any(value is parent for parent in parents):
            raise ConfigError(f"{file}:{line}: key {key!r} contains itself")
        lines[*path, key] = line
        if isinstance(value, yaml.MappingNode):
            _walk(file, loader, value, (*path, key), lines, (*parents, value))
        elif isinstance(value, yaml.ScalarNode):
            _check_scalar(file, loader, value, key)


def _check_scalar(file: Path, loader: yaml.SafeLoader, node: yaml.ScalarNode, key: str) -> None:
    """PyYAML answers a date such as 2024-13-45 with a bare ValueError: say where it stands."""
    try:
        loader.construct_object(node)
    except ValueError as error:
        raise ConfigError(f"{file}:{node.start_mark.line + 1}: {key!r}: not valid YAML: {error}") from None


def _mapping(document: Document, path: Keys, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not value:
        raise document.error(path, f"{'.'.join(path)!r} is required and must be a mapping with at least one key")
    return value


def _instance(document: Document, name: str, value: Any) -> InstanceSection:
    path = ("backends", name)
    if not ids.INSTANCE.fullmatch(name):
        rule = f"1 to {ids.MAX_INSTANCE} of a-z, 0-9 and '-', letter or digit at both ends: it is part of volume ids"
        raise document.error(path, f"backends.{name}: an instance name has {rule}")
    values = dict(_mapping(document, path, value))
    kind = values.pop("kind", None)
    if not isinstance(kind, str):
        raise document.error(path, f"backends.{name}: 'kind' is required: the kind of backend, for example 'loop'")
    return InstanceSection(name, kind, values)
