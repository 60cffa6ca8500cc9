"""Wire the services, the interceptor and the thread pool into one gRPC server."""

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
from .capabilities import Advertised, Mode, Offer, advertise
from .controller import Volumes
from .group import GroupController
from .identity import Identity
from .interceptor import Door, Interceptor, Traffic
from .labels import Subjects
from .metadata import SnapshotMetadata
from .node import Node
from .service_context import Core, unknown_place
from .snapshots import SnapshotsAndHealth

OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.max_ping_strikes", 0),  # a controller asks often whether a node is still there
)


class Controller(Volumes, SnapshotsAndHealth):
    """The whole Controller service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a driver in a cluster does otherwise.

    `attach`: the orchestrator attaches every volume. `routing` returns services that take the place of the
    usual ones. `door` says who may call.
    """

    attach: bool = False
    routing: Callable[[Core], Mapping[str, Any]] | None = None
    door: Door = Door()  # noqa: RUF009 - without state
    places: Callable[[str], Segments | None] = unknown_place


ALONE = Part()


def build(
    driver: Driver, registry: Registry, host: Host, mode: Mode, traffic: Traffic | None = None, part: Part = ALONE
) -> grpc.Server:
    """Return a server with all services, not yet bound to an address."""
    traffic = traffic or Traffic(driver.workers)
    core = _core(driver, registry, mode, part)
    services = {
        "Identity": Identity(core),
        "Controller": Controller(core),
        "GroupController": GroupController(core),
        "SnapshotMetadata": SnapshotMetadata(core),
        "Node": Node(core, observed(host, "", traffic.listeners)),
    }
    return _server(core, services | dict(part.routing(core) if part.routing else {}), traffic, part)


def build_controllers(driver: Driver, registry: Registry, traffic: Traffic, part: Part) -> grpc.Server:
    """Return a server with the Controller and GroupController services alone, not yet bound to an address."""
    core = _core(driver, registry, Mode.CONTROLLER, part)
    return _server(core, {"Controller": Controller(core), "GroupController": GroupController(core)}, traffic, part)


def _core(driver: Driver, registry: Registry, mode: Mode, part: Part) -> Core:
    def advertised() -> Advertised:
        backends = (instance.backend for instance in registry)
        return advertise(backends, mode, driver.alpha, registry.broken, attach=part.attach)

    return Core(driver, registry, Offer(lambda: registry.generation, advertised), part.places)


def _server(core: Core, services: Mapping[str, Any], traffic: Traffic, part: Part) -> grpc.Server:
    registry = core.registry
    subjects = Subjects(registry.names, lambda: registry.default)
    interceptor = Interceptor(core.offer.now, traffic, registry.degraded, subjects.of, part.door, registry.used)
    pool = ThreadPoolExecutor(core.driver.workers, thread_name_prefix="rpc")
    server = grpc.server(pool, options=OPTIONS)
    server.add_generic_rpc_handlers(tuple(_handlers(name, one, interceptor) for name, one in services.items()))
    return server


def _handlers(service: str, servicer: Any, interceptor: Interceptor) -> grpc.GenericRpcHandler:
    """Bind every method of a service by its descriptor: a method that is missing fails at start."""
    descriptor = csi_pb2.DESCRIPTOR.services_by_name[service]
    handlers = {}
    for method in descriptor.methods:
        own = getattr(servicer, method.name)
        codec = {
            "request_deserializer": GetMessageClass(method.input_type).FromString,
            "response_serializer": GetMessageClass(method.output_type).SerializeToString,
        }
        if method.server_streaming:
            behaviour = interceptor.streaming(method.name, own)
            handlers[method.name] = grpc.unary_stream_rpc_method_handler(behaviour, **codec)
        else:
            behaviour = interceptor.unary(method.name, own)
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(behaviour, **codec)
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
