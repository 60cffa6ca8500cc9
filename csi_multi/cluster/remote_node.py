"""One node as the controller sees it: its channel, its circuit breaker, its share of the threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from .._proto import csi_pb2
from ..contract.errors import StorageError, Timeout
from ..contract.observer import OUTGOING
from ..loading.admission import RUNNING_RPC, AdmissionLimit
from ..rpc.interceptor import REQUEST_ID, REQUEST_ID_KEY, WHEN_CALLER_IS_GONE
from ..rpc.status import ForwardedError
from .circuit_breaker import CircuitBreaker
from .credentials import CertificateSet

NODE_KEY = "csi-multi-node"  # metadata: the node an RPC is for; trailing metadata: the response is of its driver
NO_DEADLINE = 1e6  # seconds: gRPC reports more than this for an RPC without a deadline, and cannot forward that
PROBE_TIMEOUT = 2.0  # seconds for a node to answer a probe
SERVICES = ("Controller", "GroupController", "SnapshotMetadata")

# While a call runs, pings detect a broken connection. A node that is back is found within two seconds. Without a retry
# policy gRPC sends an RPC again only if the node has not seen it, as on a connection that the node has just renewed.
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 10000),
    ("grpc.http2.ping_timeout_ms", 10000),  # of the pings that measure the bandwidth, which replace the keepalive pings
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_retries", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class PendingCall:
    """An RPC that was sent, for callers that send it to many nodes in parallel."""

    def __init__(self, node: RemoteNode, rpc: str, request: Any, future: Any) -> None:
        self._node = node
        self._rpc = rpc
        self._request = request
        self._future = future

    def outcome(self) -> Any:
        """Wait; return the response, or the StorageError in its place."""
        try:
            answer = self._future.result()
        except grpc.RpcError as error:
            return self._node.to_storage_error(error, probe=False)  # probes one by one would take too long
        except grpc.FutureCancelledError:
            return Timeout(f"{self._node.label}: the RPC was cancelled")
        try:
            return self._node.checked(self._rpc, self._request, answer)
        except StorageError as error:
            return error


CheckAnswer = Callable[[str, str, Any, bytes], Any]  # (node, rpc, request, answer) -> response; raises StorageError


class RemoteNode:
    """RPCs to the driver on one node. `identity` is the DNS name that its certificate must contain."""

    def __init__(
        self, name: str, address: str, identity: str, certificates: CertificateSet, check: CheckAnswer
    ) -> None:
        self.name = name
        self.address = address
        self.certificates = certificates
        self.label = f"node {name!r} ({address})"
        self.breaker = CircuitBreaker(self.label)
        self.admission = AdmissionLimit(name, unshared=False, kind="node")
        options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", identity))
        self._check = check
        self._channel = grpc.secure_channel(address, certificates.channel_credentials(), options=options)
        self._methods = dict(self._all_methods())
        self._lock = threading.Lock()
        self._calls = 0
        self._retired = False

    def call(self, rpc: str, request: Any, deadline: float | None) -> Any:
        """Return the node's response. Raises ForwardedError, or Unavailable and Timeout without a usable response."""
        if running := RUNNING_RPC.get():
            running.enter(self.admission)
        with self._counting_call():
            if self.breaker.admit():
                self._probe()
            try:
                answer = self._methods[rpc](request, timeout=self._remaining(deadline), metadata=self._metadata())
            except grpc.RpcError as error:
                raise self.to_storage_error(error) from None
            return self.checked(rpc, request, answer)

    def stream(self, rpc: str, request: Any, deadline: float | None) -> Iterator[Any]:
        """Yield the node's responses, each when it is asked for. Raises as `call` does, also in the middle.

        The node's work ends with the caller of this RPC, also while the node has nothing to send for a long time.
        """
        if running := RUNNING_RPC.get():
            running.enter(self.admission)
        with self._counting_call():
            if self.breaker.admit():
                self._probe()
            answers = self._methods[rpc](request, timeout=self._remaining(deadline), metadata=self._metadata())
            if not WHEN_CALLER_IS_GONE.get()(answers.cancel):
                answers.cancel()  # it is gone already
            try:
                for answer in answers:
                    yield self.checked(rpc, request, answer)
            except grpc.RpcError as error:
                if answers.cancelled():
                    raise Timeout(f"the caller of {rpc} is gone, so {self.label} was told to end") from None
                raise self.to_storage_error(error) from None
            finally:
                answers.cancel()

    def start_call(self, rpc: str, request: Any, seconds: float) -> PendingCall:
        """Send an RPC without waiting for its response. Raises Unavailable for a node that is unreachable."""
        self.breaker.admit()  # the caller that tries an unreachable node tries it with the RPC itself
        future = self._methods[rpc].future(request, timeout=seconds, metadata=self._metadata())
        return PendingCall(self, rpc, request, future)

    def checked(self, rpc: str, request: Any, answer: bytes) -> Any:
        """Return the response in an answer. Raises StorageError for one that names what is not the node's."""
        self.breaker.record_success()
        return self._check(self.name, rpc, request, answer)

    def to_storage_error(self, error: Any, *, probe: bool = True) -> StorageError:
        """Return ForwardedError for an error of the driver on the node, otherwise Unavailable or Timeout.

        Any other error than the driver's proves nothing about the volume.
        """
        trailing = tuple(error.trailing_metadata() or ())
        code, text = error.code(), error.details() or "no details"
        if any(key == NODE_KEY for key, _ in trailing):
            self.breaker.record_success()
            more = tuple((key, value) for key, value in trailing if key != NODE_KEY and not key.startswith("grpc-"))
            return ForwardedError(code, text, more)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if probe:
                self._check_reachable()
            return Timeout(f"{self.label} did not answer in time; it may still be working on the request")
        return self.breaker.record_failure(f"{text} ({code.name})")

    def retire(self) -> None:
        """Close the channel when the RPCs that use it have ended."""
        with self._lock:
            self._retired = True
            idle = not self._calls
        if idle:
            self._channel.close()

    def close(self) -> None:
        """Close the channel now; RPCs that use it fail."""
        self._channel.close()

    def _check_reachable(self) -> None:
        """Let the circuit breaker know whether a node that did not answer in time is reachable at all."""
        try:
            self._probe()
        except StorageError:
            return

    def _probe(self) -> None:
        """Raise Unavailable unless the driver on the node answers within PROBE_TIMEOUT. An error is an answer, too."""
        try:
            request = csi_pb2.ControllerGetCapabilitiesRequest()
            self._methods["ControllerGetCapabilities"](request, timeout=PROBE_TIMEOUT, metadata=self._metadata())
        except grpc.RpcError as error:
            if not any(key == NODE_KEY for key, _ in error.trailing_metadata() or ()):
                raise self.breaker.record_failure(f"{error.details()} ({error.code().name})") from None
        self.breaker.record_success()

    def _remaining(self, deadline: float | None) -> float | None:
        if deadline is None:
            return None
        if (remaining := deadline - time.monotonic()) <= 0:
            raise Timeout(f"the deadline expired before {self.label} was called; try again")
        return remaining if remaining < NO_DEADLINE else None

    @contextmanager
    def _counting_call(self) -> Iterator[None]:
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
        """Yield every RPC by name. It returns bytes: gRPC would make a final code of what it cannot read."""
        for name in SERVICES:
            service = csi_pb2.DESCRIPTOR.services_by_name[name]
            for method in service.methods:
                kind = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
                serialize = GetMessageClass(method.input_type).SerializeToString
                yield method.name, kind(f"/{service.full_name}/{method.name}", request_serializer=serialize)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of every RPC: the node it is for, the id for both logs, and the trace."""
        request_id = ((REQUEST_ID_KEY, REQUEST_ID.get()),) if REQUEST_ID.get() else ()
        return ((NODE_KEY, self.name), *request_id, *OUTGOING.get())
