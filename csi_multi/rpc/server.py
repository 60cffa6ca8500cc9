"""Wire the services, the interceptor and the thread pool into one gRPC server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from .._proto import csi_pb2
from ..config import Driver
from ..host import Host
from ..host.observe import observed
from ..node.engine import Engine
from ..registry import Registry
from .capabilities import Mode, advertise
from .controller import Volumes
from .group import GroupController
from .identity import Identity
from .interceptor import Interceptor, Traffic
from .metadata import SnapshotMetadata
from .node import Node
from .service import Core
from .snapshots import SnapshotsAndHealth
from .subject import Subjects

OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),
)


class Controller(Volumes, SnapshotsAndHealth):
    """The whole Controller service."""


def build(driver: Driver, registry: Registry, host: Host, mode: Mode, traffic: Traffic | None = None) -> grpc.Server:
    """Return a server with all services, not yet bound to an address."""
    traffic = traffic or Traffic(driver.workers)
    advertised = advertise((instance.backend for instance in registry), mode, driver.alpha, registry.broken)
    core = Core(driver, registry, advertised)
    subjects = Subjects(registry.names, lambda: registry.default)
    interceptor = Interceptor(advertised, traffic, registry.degraded, subjects.of)
    pool = ThreadPoolExecutor(driver.workers, thread_name_prefix="rpc")
    server = grpc.server(pool, options=OPTIONS)
    services = {
        "Identity": Identity(core),
        "Controller": Controller(core),
        "GroupController": GroupController(core),
        "SnapshotMetadata": SnapshotMetadata(core),
        "Node": Node(core, Engine(observed(host, "", traffic.listeners))),
    }
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
