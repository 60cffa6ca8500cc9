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
from .interceptor import Interceptor, SharedRpcState
from .labels import RpcLabels
from .mixed_groups import MixedGroups
from .node import NodeService
from .peers import PeerPolicy
from .receive import MessageReader
from .rules import RULES, RpcCost
from .service_context import ServiceContext, unknown_node_segments
from .snapshot_metadata import SnapshotMetadataService
from .snapshots import ControllerSnapshots
from .threads import StartedThreads

ChannelOptions = tuple[tuple[str, int], ...]

CONTROLLER_WORKERS = 256
NODE_WORKERS = 64
INSTANT_THREADS = 4  # only for RPCs that use memory only, so that Probe is answered whatever the others do
CHANNEL_OPTIONS: ChannelOptions = (
    ("grpc.max_receive_message_length", 4 << 20),
    # Per connection. Callers in Go (sidecars, kubelet, Nomad) queue what is above; for one in C or Python it is
    # UNAVAILABLE, so it must not send more (of this driver a controller to a node: it has CONTROLLER_WORKERS).
    ("grpc.max_concurrent_streams", 256),
    ("grpc.server_handshake_timeout_ms", 10000),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_ping_strikes", 0),  # a controller pings its nodes often
)


# A connection costs a descriptor, and 1024 are all that a process may have by default: what is above is closed at once,
# so that connections alone never leave none for commands and devices.
LOCAL_OPTIONS: ChannelOptions = (("grpc.max_allowed_incoming_connections", 512),)

# A caller over a network comes back with its present certificate after an hour.
NETWORK_OPTIONS: ChannelOptions = (
    ("grpc.max_allowed_incoming_connections", 256),
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_idle_ms", 900_000),
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


def workers_of(driver: Driver, mode: Mode) -> int:
    """Return how many RPCs may run at once: a controller gets those of all sidecars, a node those of its kubelet."""
    if driver.workers is not None:
        return driver.workers
    return NODE_WORKERS if mode is Mode.NODE else CONTROLLER_WORKERS


def build_server(
    driver: Driver,
    registry: Registry,
    host: Host,
    mode: Mode,
    shared: SharedRpcState | None = None,
    options: ServerOptions = STANDALONE,
) -> grpc.Server:
    """Return a server with all services, not yet bound to an address."""
    shared = shared or SharedRpcState(workers_of(driver, mode))
    context = _service_context(driver, registry, mode, options)
    mixed = MixedGroups(context, shared.locks, shared.listeners) if mode is Mode.ALL else None
    services = {
        "Identity": IdentityService(context),
        "Controller": ControllerService(context),
        "GroupController": GroupControllerService(context, mixed),
        "SnapshotMetadata": SnapshotMetadataService(context),
        "Node": NodeService(context, observed(host, "", shared.listeners)),
    }
    forwarding = options.forwarding_services(context) if options.forwarding_services else {}
    return _server(
        context, services | dict(forwarding), shared, options, shared.threads, CHANNEL_OPTIONS + LOCAL_OPTIONS
    )


def build_controller_server(
    driver: Driver, registry: Registry, shared: SharedRpcState, options: ServerOptions
) -> grpc.Server:
    """Return a server with the services that a controller forwards RPCs to, not yet bound to an address.

    A controller lets few RPCs wait for one node, so there are only threads for those that may run.
    """
    context = _service_context(driver, registry, Mode.CONTROLLER, options)
    services = {
        "Controller": ControllerService(context),
        "GroupController": GroupControllerService(context, MixedGroups(context, shared.locks, shared.listeners)),
        "SnapshotMetadata": SnapshotMetadataService(context),
    }
    return _server(context, services, shared, options, shared.workers, CHANNEL_OPTIONS + NETWORK_OPTIONS)


def _service_context(driver: Driver, registry: Registry, mode: Mode, options: ServerOptions) -> ServiceContext:
    def derive() -> AdvertisedCapabilities:
        backends = (instance.backend for instance in registry)
        return advertise(backends, mode, driver.alpha, registry.broken, attach=options.attach_required)

    capabilities = CurrentCapabilities(lambda: registry.generation, derive)
    return ServiceContext(driver, registry, capabilities, options.node_segments)


def _server(
    context: ServiceContext,
    services: Mapping[str, Any],
    shared: SharedRpcState,
    options: ServerOptions,
    threads: int,
    channel_options: ChannelOptions,
) -> grpc.Server:
    registry = context.registry
    interceptor = Interceptor(
        context.capabilities.current,
        shared,
        registry.degraded,
        RpcLabels(registry.names, lambda: registry.default).of_request,
        options.peer_policy,
        MessageReader(threads),
        registry.keep_open,
    )
    usual, instant = StartedThreads(threads, "rpc"), StartedThreads(INSTANT_THREADS, "instant")
    server = grpc.server(usual, options=channel_options)
    for pool in (usual, instant):
        pool.end_with(server)
    handlers = (_handlers(name, one, interceptor, instant) for name, one in services.items())
    server.add_generic_rpc_handlers(tuple(handlers))
    return server


def _handlers(
    service: str, servicer: Any, interceptor: Interceptor, instant: ThreadPoolExecutor
) -> grpc.GenericRpcHandler:
    """Bind every method of a service by its descriptor, so that a missing method fails at start.

    The handlers read the request themselves (receive.py), so for gRPC it is a stream.
    """
    descriptor = csi_pb2.DESCRIPTOR.services_by_name[service]
    handlers = {}
    for method in descriptor.methods:
        implementation = getattr(servicer, method.name)
        request, serialize = GetMessageClass(method.input_type), GetMessageClass(method.output_type).SerializeToString
        intercept = interceptor.streaming if method.server_streaming else interceptor.unary
        behaviour = intercept(method.name, implementation, request)
        if RULES[method.name].cost is RpcCost.INSTANT:
            vars(behaviour)["experimental_thread_pool"] = instant  # gRPC's name for the pool of one method
        handler = (
            grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
        )
        handlers[method.name] = handler(behaviour, response_serializer=serialize)
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
