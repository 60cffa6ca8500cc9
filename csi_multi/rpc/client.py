"""A client of any CSI driver, made from the descriptors: client.CreateVolume(name="pvc-1", ...)."""

from __future__ import annotations

import time
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from .._proto import csi_pb2

# Retry a starting driver soon (grpc's own first pause is 1 s), give up an attempt at a stopping one soon
# (grpc's own limit is 20 s), and share no connection with other clients.
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)
PAUSE = 0.02  # seconds, before a driver that is not there yet is asked again


class Client:
    """All RPCs of all services as methods that take the request's fields as keywords.

    Raises grpc.RpcError. `timeout` is seconds per call; server-streaming RPCs return an iterator.
    """

    def __init__(self, endpoint: str, timeout: float = 120) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._timeout = timeout
        for service in csi_pb2.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                setattr(self, method.name, self._call(service.full_name, method))

    def wait(self, timeout: float = 10) -> None:
        """Wait until the driver answers. Raises TimeoutError after `timeout` seconds.

        By an RPC, since grpc.channel_ready_future starts a thread that raises when the channel is closed meanwhile.
        """
        ends = time.monotonic() + timeout
        while (left := ends - time.monotonic()) > 0:
            try:
                self.GetPluginInfo(timeout=left, wait_for_ready=True)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    time.sleep(PAUSE)
                    continue
            return
        raise TimeoutError(f"no answer within {timeout:g} s")

    def close(self) -> None:
        self._channel.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"CSI has no RPC {name!r}")

    def _call(self, service: str, method: Any) -> Any:
        request_class = GetMessageClass(method.input_type)
        make = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        call = make(
            f"/{service}/{method.name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

        def send(
            request: Any = None, *, timeout: float = self._timeout, wait_for_ready: bool = False, **fields: Any
        ) -> Any:
            message = request if request is not None else request_class(**fields)
            return call(message, timeout=timeout, wait_for_ready=wait_for_ready)

        return send
