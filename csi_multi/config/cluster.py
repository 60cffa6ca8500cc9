"""The `cluster:` section: how controller and nodes find and trust each other.

config.py reads the file and calls `parse`; every error names the file, the line, the key and the rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ..contract import ids
from ..contract.params import Doc, Schema
from .document import Document

CONTROLLER_IDENTITY = "controller.csi-multi"
NODE_IDENTITY = "{node}.node.csi-multi"
NODE_PLACEHOLDER = "{node}"
_DNS = r"[A-Za-z0-9_](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
HOST_PORT = re.compile(rf"(?:\[[0-9A-Fa-f:.%]+\]|{_DNS}(?:\.{_DNS})*):([0-9]{{1,5}})")
DNS_NAME = re.compile(rf"{_DNS}(?:\.{_DNS})*")


class TlsSection(Schema, frozen=True, kw_only=True):
    """`cluster.tls`: PEM files; they are read again when they change."""

    ca: Annotated[str, Doc("file with the certificates of those who may sign for controller and nodes")]
    certificate: Annotated[str, Doc("file with this process's certificate, and what leads to the CA")]
    key: Annotated[str, Doc("file with its private key")]


class KubernetesSection(Schema, frozen=True, kw_only=True):
    """`cluster.kubernetes`: nodes and their addresses from the Kubernetes API."""

    port: Annotated[int, Doc("where the drivers on the nodes listen", ge=1, le=65535)] = 9810
    address: Annotated[str, Doc("which address of a Node object", pattern=r"^(InternalIP|ExternalIP|Hostname)\Z")] = (
        "InternalIP"
    )
    labels: Annotated[str, Doc("label selector of the nodes that have the driver; none: all nodes")] = ""
    server: Annotated[str, Doc("the API's address; default: as every pod is told", pattern=r"^(https://.+)?\Z")] = ""
    credentials: Annotated[str, Doc("directory with the files `token` and `ca.crt`, as every pod has it")] = (
        "/var/run/secrets/kubernetes.io/serviceaccount"
    )


class ClusterSection(Schema, frozen=True, kw_only=True):
    """The `cluster:` section, beside `tls:` and `kubernetes:`."""

    listen: Annotated[str, Doc("address and port where a node serves the controller, for example 0.0.0.0:9810")] = ""
    nodes: Annotated[
        dict[str, Any] | list[str],
        Doc("NAME: ADDRESS of every node, or NAME: {address, topology}; or names alone, with `address`"),
    ] = msgspec.field(default_factory=dict)
    address: Annotated[str, Doc("address of a node, made of its name: {node}.csi-nodes.storage.svc:9810")] = ""
    controller_identity: Annotated[str, Doc("DNS name in the controller's certificate; nodes serve nobody else")] = (
        CONTROLLER_IDENTITY
    )
    node_identity: Annotated[str, Doc("DNS name in a node's certificate; without {node}: one for all nodes")] = (
        NODE_IDENTITY
    )
    lost: Annotated[
        list[str], Doc("nodes that will never come back; their volumes count as gone, and deleting them succeeds")
    ] = msgspec.field(default_factory=list)
    attach_required: Annotated[bool, Doc("as in the CSIDriver object: all backends answer ControllerPublishVolume")] = (
        False
    )


class NodeEntry(Schema, frozen=True, kw_only=True):
    """One node of `cluster.nodes`, when more than its address is given."""

    address: Annotated[str, Doc("host:port of the driver on the node")]
    topology: Annotated[dict[str, str], Doc("the node's segments, without the driver's prefix")] = msgspec.field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The section, checked."""

    listen: str = ""
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)
    kubernetes: KubernetesSection | None = None
    tls: TlsSection | None = None
    controller_identity: str = CONTROLLER_IDENTITY
    node_identity: str = NODE_IDENTITY
    lost: frozenset[str] = frozenset()
    attach_required: bool = False

    @property
    def routed(self) -> bool:
        """Whether the controller knows nodes to send the RPCs of node-local backends to."""
        return bool(self.nodes or self.kubernetes)


def parse_cluster(document: Document, values: Mapping[str, Any]) -> Cluster:
    """Check the section. Raises ConfigError."""
    rest = dict(values)
    tls = _section(document, "tls", TlsSection, rest)
    kubernetes = _section(document, "kubernetes", KubernetesSection, rest)
    keys = document.section(("cluster",), ClusterSection, rest, also=("tls", "kubernetes"))
    nodes = _nodes(document, keys)
    _check_name(document, "controller_identity", keys.controller_identity)
    _check_name(document, "node_identity", keys.node_identity.replace(NODE_PLACEHOLDER, "node"))
    before, place, after = keys.node_identity.partition(NODE_PLACEHOLDER)
    if re.fullmatch(
        f"{re.escape(before)}{ids.NODE.pattern if place else ''}{re.escape(after)}", keys.controller_identity
    ):
        raise _error(document, "node_identity", "fits the controller's too: a node could speak as the controller")
    if keys.listen and not _is_address(keys.listen):
        raise _error(document, "listen", f"{keys.listen!r} is not ADDRESS:PORT, for example 0.0.0.0:9810")
    if nodes and kubernetes:
        raise _error(document, "nodes", "stands beside 'kubernetes': nodes come from one of them")
    if (nodes or kubernetes or keys.listen) and not tls:
        raise _error(document, "tls", "is required with 'listen', 'nodes' and 'kubernetes': {ca, certificate, key}")
    for name in keys.lost:
        _check_node(document, "lost", name)
    return Cluster(
        listen=keys.listen,
        nodes=nodes,
        kubernetes=kubernetes,
        tls=tls,
        controller_identity=keys.controller_identity,
        node_identity=keys.node_identity,
        lost=frozenset(keys.lost),
        attach_required=keys.attach_required,
    )


def _section(document: Document, key: str, schema: Any, values: dict[str, Any]) -> Any:
    """Take one mapping out of the section; None when it is not there."""
    if key not in values:
        return None
    found = values.pop(key)
    if not isinstance(found, dict):
        raise _error(document, key, "must be a mapping")
    return document.section(("cluster", key), schema, found)


def _nodes(document: Document, keys: ClusterSection) -> dict[str, NodeEntry]:
    """Return every node's entry, whichever way it is written."""
    if keys.address and (isinstance(keys.nodes, dict) or NODE_PLACEHOLDER not in keys.address):
        raise _error(
            document, "address", f"holds {NODE_PLACEHOLDER} and goes with a list of names: nodes: [node-1, node-2]"
        )
    if isinstance(keys.nodes, list) and not keys.address:
        raise _error(
            document, "address", f"is required with a list of nodes, for example '{NODE_PLACEHOLDER}.example.com:9810'"
        )
    if isinstance(keys.nodes, list):
        found = {name: NodeEntry(address=keys.address.replace(NODE_PLACEHOLDER, name)) for name in keys.nodes}
        if len(found) < len(keys.nodes):
            raise _error(document, "nodes", "names a node twice")
    else:
        found = {name: _entry(document, name, value) for name, value in keys.nodes.items()}
    for name, entry in found.items():
        _check_node(document, "nodes", name)
        if not _is_address(entry.address):
            text = f"{name}: {entry.address!r} is not HOST:PORT, for example 10.0.0.1:9810"
            raise _error(document, "nodes", text, name)
    return found


def _entry(document: Document, name: str, value: Any) -> NodeEntry:
    if isinstance(value, str):
        return NodeEntry(address=value)
    if not isinstance(value, dict):
        raise _error(document, "nodes", f"{name}: is HOST:PORT, or a mapping with 'address' and 'topology'", name)
    return document.section(("cluster", "nodes", name), NodeEntry, value)


def _is_address(text: str) -> bool:
    found = HOST_PORT.fullmatch(text)
    return bool(found and int(found[1]) < 65536)


def _check_node(document: Document, key: str, name: str) -> None:
    if not ids.NODE.fullmatch(name):
        raise _error(document, key, f"{name!r} is not a node's name: 1 to {ids.MAX_NODE} of letters, digits, '-_.'")


def _check_name(document: Document, key: str, name: str) -> None:
    if not DNS_NAME.fullmatch(name):
        raise _error(document, key, f"{name!r} is not a DNS name")


def _error(document: Document, key: str, text: str, *more: str) -> Exception:
    return document.error(("cluster", key, *more), f"cluster.{key}: {text}")
