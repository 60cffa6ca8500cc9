"""What a process does in a cluster: a controller gets nodes to send to, a node gets a port to serve the controller."""

from __future__ import annotations

import logging
import threading
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
from ..rpc.interceptor import RequestIdPolicy, SharedRpcState
from ..rpc.server import ServerOptions, build_controller_server
from ..rpc.service_context import ServiceContext
from .addresses import Addresses, Listed
from .controller import ClusterController, ClusterGroupController
from .credentials import Credentials
from .peer_auth import ControllerOnly
from .remote_nodes import Nodes

log = logging.getLogger(__name__)


class Role:
    """One process's part in the cluster of its configuration; none, where the file has no such section.

    `local` says whether this process does the work of node-local instances, None: as without a cluster.
    """

    def __init__(self, config: Config, mode: Mode) -> None:
        """Raises ConfigError. Nothing is asked and nobody served yet."""
        cluster = config.cluster
        self._config = config
        self._nodes: Nodes | None = None
        self._server: grpc.Server | None = None
        self.local: bool | None = None
        self.server_options = ServerOptions(attach_required=cluster.attach_required)
        if mode is Mode.CONTROLLER and cluster.routed:
            self.local = False
            self._nodes = Nodes(cluster, _addresses(config), _credentials(config))
            self.server_options = controller_part(cluster, self._nodes)
        elif mode is Mode.NODE and cluster.listen:
            self.local = True
        elif mode is Mode.NODE and cluster.routed:
            raise config.document.error(("cluster",), "cluster.listen is required in mode node: ADDRESS:PORT")

    def start(self, registry: Registry, traffic: SharedRpcState) -> None:
        """Begin to watch the nodes, or to serve the controller. Raises ConfigError, EndpointError."""
        if self._nodes:
            self._nodes.addresses.start()
        if self.local:
            self._server = node_server(self._config, registry, traffic)
            self._server.start()
            log.info("serving the controller", extra={"fields": {"address": self._config.cluster.listen}})

    def stop(self, grace: float) -> threading.Event:
        """Take no more RPCs from the controller; return what is set when those that run have ended."""
        if self._server:
            ended: threading.Event = self._server.stop(grace)
            return ended
        done = threading.Event()
        done.set()
        return done

    def close(self) -> None:
        if self._nodes:
            self._nodes.close()


def controller_part(cluster: Cluster, nodes: Nodes) -> ServerOptions:
    """Return how a controller that sends RPCs on to these nodes differs from one that is alone."""

    def routing(core: ServiceContext) -> Mapping[str, Any]:
        return {"Controller": ClusterController(core, nodes), "GroupController": ClusterGroupController(core, nodes)}

    places = nodes.addresses.segments
    return ServerOptions(
        attach_required=cluster.attach_required, routing=routing, peer_policy=RequestIdPolicy(), node_segments=places
    )


def node_server(config: Config, registry: Registry, traffic: SharedRpcState) -> grpc.Server:
    """Return a server on `cluster.listen` for what only this node can do. Raises ConfigError, EndpointError."""
    cluster, driver = config.cluster, config.driver
    local = registry.subset(lambda backend: isinstance(backend, NodeLocal))
    options = ServerOptions(
        attach_required=cluster.attach_required, peer_policy=ControllerOnly(driver.node, cluster.controller_identity)
    )
    server = build_controller_server(driver, local, traffic, options)
    try:
        bound = server.add_secure_port(cluster.listen, _credentials(config).server())
    except RuntimeError:
        bound = 0
    if not bound:
        raise EndpointError(f"cannot listen on cluster.listen {cluster.listen}: is the port taken?")
    return server


def _addresses(config: Config) -> Addresses:
    if config.cluster.kubernetes:
        from .kubernetes_nodes import KubernetesNodes  # with HTTPS, which no other controller loads

        return KubernetesNodes(config.cluster.kubernetes, config.driver.name)
    return Listed(config.cluster.nodes)


def _credentials(config: Config) -> Credentials:
    """Raises ConfigError. The section is complete: config_cluster.py has seen to it."""
    tls = config.cluster.tls
    if tls is None:
        raise ConfigError(f"{config.document.file}: cluster.tls is required")
    return Credentials(tls)
