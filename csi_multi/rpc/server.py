"""Connects the services, the interceptor and the thread pool to one gRPC server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from .._proto import csi_pb2
from ..config.settings import Driver
from ..contract.machine import Host
from ..contract.model import Segments
from ..contract.observer import observed
from ..loading.registry import Registry
from .capabilities import AdvertisedCapabilities, CurrentCapabilities, Mode, advertise
from .controller import ControllerVolumes
from .group import GroupControllerService
from .identity import IdentityService
from .interceptor import Interceptor, PeerPolicy, SharedRpcState
from .labels import RpcLabels
from .node import NodeService
from .service_context import ServiceContext, unknown_node_segments
from .snapshot_metadata import SnapshotMetadataService
from .snapshots import ControllerSnapshots

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_ping_strikes", 0),  # a controller pings its nodes often
)


class ControllerService(ControllerVolumes, ControllerSnapshots):
    """The whole Controller service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server in a cluster differs from a standalone one.

    `attach_required`: the orchestrator attaches every volume. `forwarding_services` returns services that replace the
    usual ones. `peer_policy` decides who may call. `node_segments` returns the segments of a node by its name.
    """

    attach_required: bool = False
    forwarding_services: Callable[[ServiceContext], Mapping[str, Any]] | None = None
    peer_policy: PeerPolicy = PeerPolicy()  # noqa: RUF009 - without state
    node_segments: Callable[[str], Segments | None] = unknown_node_segments


STANDALONE = ServerOptions()


def build_server(
    driver: Driver,
    registry: Registry,
    host: Host,
    mode: Mode,
    shared: SharedRpcState | None = None,
    options: ServerOptions = STANDALONE,
) -> grpc.Server:
    """Return a server with all services, not yet bound to an address."""
    shared = shared or SharedRpcState(driver.workers)
    context = _service_context(driver, registry, mode, options)
    services = {
        "Identity": IdentityService(context),
        "Controller": ControllerService(context),
        "GroupController": GroupControllerService(context),
        "SnapshotMetadata": SnapshotMetadataService(context),
        "Node": NodeService(context, observed(host, "", shared.listeners)),
    }
    forwarding = options.forwarding_services(context) if options.forwarding_services else {}
    return _server(context, services | dict(forwarding), shared, options)


def build_controller_server(
    driver: Driver, registry: Registry, shared: SharedRpcState, options: ServerOptions
) -> grpc.Server:
    """Return a server with the Controller and GroupController services only, not yet bound to an address."""
    context = _service_context(driver, registry, Mode.CONTROLLER, options)
    services = {"Controller": ControllerService(context), "GroupController": GroupControllerService(context)}
    return _server(context, services, shared, options)


def _service_context(driver: Driver, registry: Registry, mode: Mode, options: ServerOptions) -> ServiceContext:
    def derive() -> AdvertisedCapabilities:
        backends = (instance.backend for instance in registry)
        return advertise(backends, mode, driver.alpha, registry.broken, attach=options.attach_required)

    capabilities = CurrentCapabilities(lambda: registry.generation, derive)
    return ServiceContext(driver, registry, capabilities, options.node_segments)


def _server(
    context: ServiceContext, services: Mapping[str, Any], shared: SharedRpcState, options: ServerOptions
) -> grpc.Server:
    registry = context.registry
    interceptor = Interceptor(
        context.capabilities.current,
        shared,
        registry.degraded,
        RpcLabels(registry.names, lambda: registry.default).of_request,
        options.peer_policy,
        registry.keep_open,
    )
    pool = ThreadPoolExecutor(context.driver.workers, thread_name_prefix="rpc")
    server = grpc.server(pool, options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers(tuple(_handlers(name, one, interceptor) for name, one in services.items()))
    return server


def _handlers(service: str, servicer: Any, interceptor: Interceptor) -> grpc.GenericRpcHandler:
    """Bind every method of a service by its descriptor, so that a missing method fails at start."""
    descriptor = csi_pb2.DESCRIPTOR.services_by_name[service]
    handlers = {}
    for method in descriptor.methods:
        implementation = getattr(servicer, method.name)
        codec = {
            "request_deserializer": GetMessageClass(method.input_type).FromString,
            "response_serializer": GetMessageClass(method.output_type).SerializeToString,
        }
        if method.server_streaming:
            behaviour = interceptor.streaming(method.name, implementation)
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(behaviour, **codec)
        else:
            behaviour = interceptor.unary(method.name, implementation)
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(behaviour, **codec)
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
