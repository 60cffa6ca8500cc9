"""The bare operation: a grpcio server whose handlers do nothing, with the driver's messages and threads.

CSI_ENDPOINT=unix:///path.sock python bench/bare.py WORKERS
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as the driver does

import grpc

from csi_multi._proto import csi_pb2 as pb


def empty(request: Any, response: Any) -> grpc.RpcMethodHandler:
    """Return the handler that answers an RPC with an empty message."""
    return grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: response(),
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )


HANDLERS = {
    "csi.v1.Identity": {"Probe": empty(pb.ProbeRequest, pb.ProbeResponse)},
    "csi.v1.Node": {"NodeGetCapabilities": empty(pb.NodeGetCapabilitiesRequest, pb.NodeGetCapabilitiesResponse)},
}


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(int(sys.argv[1])))
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in HANDLERS.items())
    )
    server.add_insecure_port(f"unix:{sys.argv[2]}")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server.start()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(None).wait()


if __name__ == "__main__":
    main()
