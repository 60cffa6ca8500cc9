"""A process's part in the cluster: a controller forwards RPCs to nodes, a node serves the controller on a port."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import grpc

from ..config.cluster import Cluster
from ..config.document import ConfigError
from ..config.settings import Config
from ..contract.backend import NodeLocal
from ..loading.registry import Registry
from ..rpc.capabilities import Mode
from ..rpc.endpoint import EndpointError
from ..rpc.interceptor import SharedRpcState
from ..rpc.peers import RequestIdPolicy
from ..rpc.server import ServerOptions, build_controller_server
from ..rpc.service_context import ServiceContext
from ..rpc.threads import ServerStop
from .addresses import ConfiguredNodes, NodeAddresses
from .answer_check import AnswerCheck
from .controller import ClusterControllerService, ClusterGroupControllerService, ClusterSnapshotMetadataService
from .credentials import Credentials
from .peer_auth import ControllerOnlyPolicy
from .remote_nodes import RemoteNodes

log = logging.getLogger(__name__)


class ClusterMembership:
    """What this process does in the cluster of its configuration; nothing, where the file has no such section.

    `local` says whether this process serves node-local instances; None: as without a cluster.
    """

    def __init__(self, config: Config, mode: Mode) -> None:
        """Prepare only: nothing is called or served yet. Raises ConfigError."""
        cluster = config.cluster
        self._config = config
        self._nodes: RemoteNodes | None = None
        self._server: grpc.Server | None = None
        self.local: bool | None = None
        self.server_options = ServerOptions(attach_required=cluster.attach_required)
        if mode is Mode.CONTROLLER and cluster.forwards_rpcs:
            self.local = False
            self._nodes = RemoteNodes(cluster, _addresses(config), _credentials(config))
            self.server_options = controller_options(cluster, self._nodes)
        elif mode is Mode.NODE and cluster.listen:
            self.local = True
        elif mode is Mode.NODE and cluster.forwards_rpcs:
            raise config.document.error(("cluster",), "cluster.listen is required in mode node; set it to ADDRESS:PORT")

    def start(self, registry: Registry, shared: SharedRpcState) -> None:
        """Begin to watch the nodes, or to serve the controller. Raises ConfigError, EndpointError."""
        if self._nodes:
            self._nodes.addresses.start()
        if self.local:
            self._server = node_server(self._config, registry, shared)
            self._server.start()
            log.info("serving the controller", extra={"fields": {"address": self._config.cluster.listen}})

    def stop(self, grace: float) -> tuple[ServerStop, ...]:
        """Accept no more RPCs from the controller; return what to wait for until the running ones have ended."""
        return (ServerStop(self._server, grace),) if self._server else ()

    def refused_answers(self) -> int:
        """Return how many answers of nodes were refused since the start."""
        return self._nodes.answers.refused if self._nodes else 0

    def close(self) -> None:
        if self._nodes:
            self._nodes.close()


def controller_options(cluster: Cluster, nodes: RemoteNodes) -> ServerOptions:
    """Return how the server of a controller that forwards RPCs to these nodes differs from a standalone one."""

    def forwarding_services(context: ServiceContext) -> Mapping[str, Any]:
        nodes.answers = AnswerCheck(context.driver.name, context.registry)
        return {
            "Controller": ClusterControllerService(context, nodes),
            "GroupController": ClusterGroupControllerService(context, nodes),
            "SnapshotMetadata": ClusterSnapshotMetadataService(context, nodes),
        }

    return ServerOptions(
        attach_required=cluster.attach_required,
        forwarding_services=forwarding_services,
        peer_policy=RequestIdPolicy(),
        node_segments=nodes.addresses.segments,
    )


def node_server(config: Config, registry: Registry, shared: SharedRpcState) -> grpc.Server:
    """Return a server on `cluster.listen` for the node-local instances. Raises ConfigError, EndpointError."""
    cluster, driver = config.cluster, config.driver
    local = registry.subset(lambda backend: isinstance(backend, NodeLocal))
    policy = ControllerOnlyPolicy(driver.node, cluster.controller_identity)
    options = ServerOptions(attach_required=cluster.attach_required, peer_policy=policy)
    server = build_controller_server(driver, local, shared, options)
    try:
        port = server.add_secure_port(cluster.listen, _credentials(config).server())
    except RuntimeError:
        port = 0
    if not port:
        raise EndpointError(
            f"cannot listen on cluster.listen {cluster.listen}; check that the address is one of this node and that no "
            "other process uses the port"
        )
    return server


def _addresses(config: Config) -> NodeAddresses:
    if config.cluster.kubernetes:
        from .kubernetes_nodes import KubernetesNodes  # imports HTTPS, which no other controller needs

        return KubernetesNodes(config.cluster.kubernetes, config.driver.name)
    return ConfiguredNodes(config.cluster.nodes)


def _credentials(config: Config) -> Credentials:
    """Raises ConfigError. config/cluster.py has checked that the section is complete."""
    tls = config.cluster.tls
    if tls is None:
        raise ConfigError(f"{config.document.file}: cluster.tls is required; set ca, certificate and key")
    return Credentials(tls)
