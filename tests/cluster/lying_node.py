"""A node's driver that was taken over: a process with the node's own certificate that answers whatever it is told to.

Arguments: the directory of the certificate, the address, and the file with the answers, read for every RPC:
{RPC: the response, serialized, in hexadecimal}. It prints its port.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc


def main(directory: Path, address: str, answers: Path, name: str) -> None:
    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            rpc = details.method.rpartition("/")[2]

            def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
                context.set_trailing_metadata((("csi-multi-node", name),))
                return bytes.fromhex(json.loads(answers.read_text()).get(rpc, ""))

            return grpc.unary_unary_rpc_method_handler(answer)

    key, certificate, ca = ((directory / f"{part}.pem").read_bytes() for part in ("key", "certificate", "ca"))
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((Handler(),))
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    print(server.add_secure_port(address, credentials), flush=True)
    server.start()
    time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4])
