"""One node seen from the controller: its channel, its circuit, its share of the threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from .._proto import csi_pb2
from ..contract.errors import StorageError, Timeout
from ..contract.observer import OUTGOING
from ..loading.admission import RUNNING_RPC, AdmissionLimit
from ..rpc.interceptor import REQUEST_ID, REQUEST_ID_KEY
from ..rpc.status import ForwardedError
from .circuit import Circuit
from .credentials import Bundle

MARK = "csi-multi-node"  # metadata: which node is meant; trailing metadata: that the driver on it says this
FOREVER = 1e6  # seconds: gRPC shows an RPC without a deadline as one with more, and cannot send it on
PROBE = 2.0  # seconds for a node to say that it is there
SERVICES = ("Controller", "GroupController")

# A connection that is cut is noticed by pings while a call runs, a node that is back is found again within two
# seconds, and nothing is sent twice but by us.
OPTIONS = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 10000),
    ("grpc.http2.ping_timeout_ms", 10000),  # of the pings that measure the line, which take the others' place
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class Pending:
    """An RPC that is under way, for those who ask many nodes at once."""

    def __init__(self, node: Node, future: Any) -> None:
        self._node = node
        self._future = future

    def outcome(self) -> Any:
        """Wait for the response, or the StorageError that stands for it."""
        try:
            response = self._future.result()
        except grpc.RpcError as error:
            return self._node.failure(error, suspect=False)  # one by one it would take long, and pings tell too
        except grpc.FutureCancelledError:
            return Timeout(f"{self._node.label}: the RPC was cancelled")
        self._node.circuit.worked()
        return response


class Node:
    """RPCs to the driver on one node. `identity` is the DNS name that its certificate must carry."""

    def __init__(self, name: str, address: str, identity: str, bundle: Bundle) -> None:
        self.name = name
        self.address = address
        self.bundle = bundle
        self.label = f"node {name!r} ({address})"
        self.circuit = Circuit(self.label)
        self.admission = AdmissionLimit(name, unshared=False, kind="node")
        options = (*OPTIONS, ("grpc.ssl_target_name_override", identity))
        self._channel = grpc.secure_channel(address, bundle.channel(), options=options)
        self._methods = dict(self._all_methods())
        self._lock = threading.Lock()
        self._calls = 0
        self._retired = False

    def call(self, rpc: str, request: Any, deadline: float | None) -> Any:
        """Return the node's response. Raises Answered with its refusal, Unavailable or Timeout without an answer."""
        if visit := RUNNING_RPC.get():
            visit.enter(self.admission)
        with self._counted():
            if self.circuit.admit():
                self._probe()
            try:
                response = self._methods[rpc](request, timeout=self._left(deadline), metadata=self._metadata())
            except grpc.RpcError as error:
                raise self.failure(error) from None
            self.circuit.worked()
            return response

    def begin(self, rpc: str, request: Any, seconds: float) -> Pending:
        """Send an RPC without waiting for its answer. Raises Unavailable for a node that is known to be down."""
        self.circuit.admit()  # the one who tries a node that was down tries it with the RPC itself
        return Pending(self, self._methods[rpc].future(request, timeout=seconds, metadata=self._metadata()))

    def failure(self, error: Any, *, suspect: bool = True) -> StorageError:
        """Tell an answer of the driver on the node from everything else, which says nothing about the volume."""
        trailing = tuple(error.trailing_metadata() or ())
        code, text = error.code(), error.details() or "no reason was given"
        if any(key == MARK for key, _ in trailing):
            self.circuit.worked()
            more = tuple((key, value) for key, value in trailing if key != MARK and not key.startswith("grpc-"))
            return ForwardedError(code, text, more)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if suspect:
                self._suspect()
            return Timeout(f"{self.label} did not answer in time; what was asked may still be going on there")
        return self.circuit.failed(f"{text} ({code.name})")

    def retire(self) -> None:
        """Close the channel, after the RPCs that run through it."""
        with self._lock:
            self._retired = True
            idle = not self._calls
        if idle:
            self._channel.close()

    def close(self) -> None:
        """Close the channel now; what runs through it is cut off."""
        self._channel.close()

    def _suspect(self) -> None:
        """Find out whether a node that did not answer in time is there at all. A refusal is an answer."""
        try:
            self._probe()
        except StorageError:
            return

    def _probe(self) -> None:
        """Raise Unavailable unless the driver on the node answers at once."""
        try:
            request = csi_pb2.ControllerGetCapabilitiesRequest()
            self._methods["ControllerGetCapabilities"](request, timeout=PROBE, metadata=self._metadata())
        except grpc.RpcError as error:
            if not any(key == MARK for key, _ in error.trailing_metadata() or ()):
                raise self.circuit.failed(f"{error.details()} ({error.code().name})") from None
        self.circuit.worked()

    def _left(self, deadline: float | None) -> float | None:
        if deadline is None:
            return None
        if (left := deadline - time.monotonic()) <= 0:
            raise Timeout(f"no time is left to ask {self.label}")
        return left if left < FOREVER else None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                last = self._retired and not self._calls
            if last:
                self._channel.close()

    def _all_methods(self) -> Iterator[tuple[str, Any]]:
        for name in SERVICES:
            service = csi_pb2.DESCRIPTOR.services_by_name[name]
            for method in service.methods:
                yield (
                    method.name,
                    self._channel.unary_unary(
                        f"/{service.full_name}/{method.name}",
                        request_serializer=GetMessageClass(method.input_type).SerializeToString,
                        response_deserializer=GetMessageClass(method.output_type).FromString,
                    ),
                )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what goes with every RPC: which node is meant, the id for both logs, and what a trace needs."""
        number = ((REQUEST_ID_KEY, REQUEST_ID.get()),) if REQUEST_ID.get() else ()
        return ((MARK, self.name), *number, *OUTGOING.get())
