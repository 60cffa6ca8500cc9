"""The driver's configuration: one YAML file, checked completely before anything starts.

Every error names the file, the line, the key, the rule, and the nearest valid key.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..contract import ids
from ..contract.params import Doc, Schema, unknown
from .cluster import Cluster
from .cluster import parse_cluster as parse_cluster
from .document import Document, KeyPath, read_document

SECTIONS = ("driver", "backends", "cluster")

# RFC 1035 labels in lower case, because it prefixes topology keys; letters at both ends for csi-sanity.
_WORD = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
NAME = rf"^(?=.{{2,63}}\Z)(?=[a-z]){_WORD}(?:\.{_WORD})*(?<=[a-z])\Z"
LABEL = r"^[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?\Z"


class Driver(Schema, frozen=True, kw_only=True):
    """The `driver:` section."""

    name: Annotated[str, Doc("driver name, as in StorageClass.provisioner", pattern=NAME)]
    default_backend: Annotated[str, Doc("instance for StorageClasses without `backend`; empty: they are refused")] = ""
    default_fs_type: Annotated[
        Literal["ext4", "xfs", "btrfs"], Doc("filesystem where the StorageClass has none; fixed at creation")
    ] = "ext4"
    cluster: Annotated[str, Doc("stamped on every resource, so clusters can share storage", pattern=LABEL)] = "default"
    node: Annotated[str, Doc("name of this node, part of volume ids; default: the host name", pattern=LABEL)] = (
        msgspec.field(default_factory=socket.gethostname)
    )
    alpha: Annotated[bool, Doc("also advertise RPCs that are alpha in CSI 1.13")] = False
    workers: (
        Annotated[
            int,
            Doc(
                "RPCs that may run at once, besides Probe; more wait. Default: 256 for a controller, 64 for a node",
                ge=8,
                le=2048,
            ),
        ]
        | None
    ) = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Doc("lowest level that is logged")] = "info"
    log_style: Annotated[Literal["auto", "json", "console"], Doc("auto: console on a terminal, else JSON")] = "auto"
    check_seconds: Annotated[
        int, Doc("seconds between checks of each instance's storage; fewer where RPCs show that it answers", ge=1)
    ] = 30
    reload_seconds: Annotated[int, Doc("seconds between checks of this file for changes; 0: at SIGHUP only", ge=0)] = 10
    metrics: Annotated[str, Doc("HOST:PORT for Prometheus metrics, /healthz and /readyz; empty: off")] = ""
    metrics_certificate: Annotated[
        str, Doc("PEM file with the certificate for `metrics`, then the intermediate ones; empty: plain HTTP")
    ] = ""
    metrics_key: Annotated[
        str, Doc("PEM file with the private key of `metrics_certificate`; both are read anew for each connection")
    ] = ""
    survey_seconds: Annotated[int, Doc("seconds between volume and capacity metrics; 0: off", ge=0)] = 300


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


def load_config(file: Path, node: str = "") -> Config:
    """Read and check the file; `node` replaces driver.node, for a file that all nodes share. Raises ConfigError."""
    document = read_document(file)
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
        raise document.error(
            ("driver", "node"), f"driver.node: the host name {driver.node!r} is not a valid node name; set 'node'"
        )
    tls = (driver.metrics_certificate, driver.metrics_key)
    if any(tls) and not (all(tls) and driver.metrics):
        raise document.error(
            ("driver",),
            "driver: 'metrics_certificate' and 'metrics_key' need each other, and a port: set 'metrics', too",
        )
    cluster = Cluster()
    if "cluster" in document.values:
        cluster = parse_cluster(document, _mapping(document, ("cluster",), document.values["cluster"]))
    return Config(document, driver, instances, cluster)


def _mapping(document: Document, path: KeyPath, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not value:
        raise document.error(path, f"{'.'.join(path)!r} is required and must be a mapping with at least one key")
    return value


def _instance(document: Document, name: str, value: Any) -> InstanceSection:
    path = ("backends", name)
    if not ids.INSTANCE.fullmatch(name):
        rule = f"1 to {ids.MAX_INSTANCE} of a-z, 0-9 and '-', with a letter or digit at both ends"
        raise document.error(path, f"backends.{name}: an instance name, which volume ids contain, has {rule}")
    values = dict(_mapping(document, path, value))
    kind = values.pop("kind", None)
    if not isinstance(kind, str):
        raise document.error(path, f"backends.{name}: 'kind' is required, for example 'loop'")
    return InstanceSection(name, kind, values)
