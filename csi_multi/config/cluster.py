"""The `cluster:` section: how controller and nodes find and trust each other.

settings.py reads the file and calls `parse_cluster`; every error names the file, the line, the key and the rule.
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
    """`cluster.tls`: PEM files, which are read again when they change."""

    ca: Annotated[str, Doc("file with the certificates of the CAs that sign for controller and nodes")]
    certificate: Annotated[str, Doc("file with this process's certificate and the intermediate ones")]
    key: Annotated[str, Doc("file with the private key of the certificate")]


class KubernetesSection(Schema, frozen=True, kw_only=True):
    """`cluster.kubernetes`: nodes and their addresses come from the Kubernetes API."""

    port: Annotated[int, Doc("port on which the drivers on the nodes listen", ge=1, le=65535)] = 9810
    address: Annotated[
        str, Doc("the type of address to use from a Node object", pattern=r"^(InternalIP|ExternalIP|Hostname)\Z")
    ] = "InternalIP"
    labels: Annotated[str, Doc("label selector of the nodes with the driver; default: all nodes")] = ""
    server: Annotated[
        str, Doc("address of the API server; default: the one that pods get", pattern=r"^(https://.+)?\Z")
    ] = ""
    credentials: Annotated[str, Doc("directory with the files `token` and `ca.crt`, as in every pod")] = (
        "/var/run/secrets/kubernetes.io/serviceaccount"
    )


class ClusterSection(Schema, frozen=True, kw_only=True):
    """The keys of `cluster:` except `tls` and `kubernetes`."""

    listen: Annotated[str, Doc("address and port where a node serves the controller, for example 0.0.0.0:9810")] = ""
    nodes: Annotated[
        dict[str, Any] | list[str],
        Doc("NAME: ADDRESS of every node, or NAME: {address, topology}; or names alone, with `address`"),
    ] = msgspec.field(default_factory=dict)
    address: Annotated[str, Doc("address of a node by its name: {node}.csi-nodes.storage.svc:9810")] = ""
    controller_identity: Annotated[str, Doc("DNS name in the controller's certificate; nodes refuse all others")] = (
        CONTROLLER_IDENTITY
    )
    node_identity: Annotated[str, Doc("DNS name in a node's certificate; without {node} all have the same")] = (
        NODE_IDENTITY
    )
    lost: Annotated[list[str], Doc("nodes that are lost for ever; their volumes count as deleted")] = msgspec.field(
        default_factory=list
    )
    attach_required: Annotated[bool, Doc("attachRequired of CSIDriver: all backends serve ControllerPublishVolume")] = (
        False
    )


class NodeEntry(Schema, frozen=True, kw_only=True):
    """One node of `cluster.nodes` that has more than its address."""

    address: Annotated[str, Doc("host:port of the driver on the node")]
    topology: Annotated[dict[str, str], Doc("the node's segments, without the driver's prefix")] = msgspec.field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """The checked section."""

    listen: str = ""
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)
    kubernetes: KubernetesSection | None = None
    tls: TlsSection | None = None
    controller_identity: str = CONTROLLER_IDENTITY
    node_identity: str = NODE_IDENTITY
    lost: frozenset[str] = frozenset()
    attach_required: bool = False

    @property
    def forwards_rpcs(self) -> bool:
        """Whether the controller forwards the RPCs of node-local backends to nodes."""
        return bool(self.nodes or self.kubernetes)


def parse_cluster(document: Document, values: Mapping[str, Any]) -> Cluster:
    """Check the section. Raises ConfigError."""
    remaining = dict(values)
    tls = _section(document, "tls", TlsSection, remaining)
    kubernetes = _section(document, "kubernetes", KubernetesSection, remaining)
    section = document.section(("cluster",), ClusterSection, remaining, also=("tls", "kubernetes"))
    nodes = _nodes(document, section)
    _check_name(document, "controller_identity", section.controller_identity)
    _check_name(document, "node_identity", section.node_identity.replace(NODE_PLACEHOLDER, "node"))
    before, placeholder, after = section.node_identity.partition(NODE_PLACEHOLDER)
    if re.fullmatch(
        f"{re.escape(before)}{ids.NODE.pattern if placeholder else ''}{re.escape(after)}", section.controller_identity
    ):
        raise _error(
            document,
            "node_identity",
            "also matches controller_identity, so a node could act as the controller; choose different names",
        )
    if section.listen and not _is_address(section.listen):
        raise _error(document, "listen", f"{section.listen!r} is not ADDRESS:PORT, for example 0.0.0.0:9810")
    if nodes and kubernetes:
        raise _error(document, "nodes", "set either 'nodes' or 'kubernetes', not both")
    if (nodes or kubernetes or section.listen) and not tls:
        raise _error(
            document,
            "tls",
            "is required with 'listen', 'nodes' or 'kubernetes': {ca: FILE, certificate: FILE, key: FILE}",
        )
    for name in section.lost:
        _check_node(document, "lost", name)
    return Cluster(
        listen=section.listen,
        nodes=nodes,
        kubernetes=kubernetes,
        tls=tls,
        controller_identity=section.controller_identity,
        node_identity=section.node_identity,
        lost=frozenset(section.lost),
        attach_required=section.attach_required,
    )


def _section(document: Document, key: str, schema: Any, values: dict[str, Any]) -> Any:
    """Remove one mapping from the values and return it checked; None when it is not set."""
    if key not in values:
        return None
    found = values.pop(key)
    if not isinstance(found, dict):
        raise _error(document, key, "must be a mapping")
    return document.section(("cluster", key), schema, found)


def _nodes(document: Document, section: ClusterSection) -> dict[str, NodeEntry]:
    """Return the entry of every node, from any of the three forms of `nodes`."""
    if section.address and (isinstance(section.nodes, dict) or NODE_PLACEHOLDER not in section.address):
        raise _error(
            document, "address", f"must contain {NODE_PLACEHOLDER} and needs a list of names: nodes: [node-1, node-2]"
        )
    if isinstance(section.nodes, list) and not section.address:
        raise _error(
            document,
            "address",
            f"is required when 'nodes' is a list, for example '{NODE_PLACEHOLDER}.example.com:9810'",
        )
    if isinstance(section.nodes, list):
        found = {name: NodeEntry(address=section.address.replace(NODE_PLACEHOLDER, name)) for name in section.nodes}
        if len(found) < len(section.nodes):
            raise _error(document, "nodes", "contains a node twice")
    else:
        found = {name: _entry(document, name, value) for name, value in section.nodes.items()}
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
        raise _error(document, "nodes", f"{name}: must be HOST:PORT, or a mapping with 'address' and 'topology'", name)
    return document.section(("cluster", "nodes", name), NodeEntry, value)


def _is_address(text: str) -> bool:
    found = HOST_PORT.fullmatch(text)
    return bool(found and int(found[1]) < 65536)


def _check_node(document: Document, key: str, name: str) -> None:
    if not ids.NODE.fullmatch(name):
        raise _error(document, key, f"{name!r} is not a valid node name: 1 to {ids.MAX_NODE} letters, digits or '-_.'")


def _check_name(document: Document, key: str, name: str) -> None:
    if not DNS_NAME.fullmatch(name):
        raise _error(document, key, f"{name!r} is not a DNS name such as {CONTROLLER_IDENTITY}")


def _error(document: Document, key: str, text: str, *more: str) -> Exception:
    return document.error(("cluster", key, *more), f"cluster.{key}: {text}")
