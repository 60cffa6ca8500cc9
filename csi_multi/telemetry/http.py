"""The HTTP port for metrics: /metrics, and two answers for supervisors and load balancers.

/healthz says that the process lives, /readyz that it serves RPCs. Neither asks a storage: a driver whose
storage is down is not mended by a restart.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..rpc.endpoint import EndpointError

log = logging.getLogger(__name__)

Metrics = Callable[[str], tuple[bytes, str]]  # what is accepted -> (text, its type)

PATIENCE = 10.0  # seconds for a request to come in
MOST = 16  # requests at once; more are closed at once
QUEUE = 64  # connections that wait to be taken
TURN = 3600.0  # seconds between looks at whether it is to stop; `close` wakes it
PLAIN = "text/plain; charset=utf-8"


class Page:
    """Listens as soon as it is made, and answers in threads of its own."""

    def __init__(self, address: str, metrics: Metrics) -> None:
        """Raises EndpointError for an address that cannot be used."""
        self.ready = False
        host, port = parse(address)
        try:
            self._server = _Server(host, port, self, metrics)
        except OSError as error:
            reason = error.strerror or error
            raise EndpointError(f"driver.metrics: cannot listen on {address}: {reason}; choose another port") from None
        self.address = "{}:{}".format(*self._server.server_address[:2])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(TURN,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        self._server.shutdown()
        self._server.server_close()


def parse(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 host stands in brackets. Raises EndpointError."""
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and not address.startswith("[")):
        raise EndpointError(f"driver.metrics {address!r}: expected HOST:PORT, for example 127.0.0.1:9809 or [::1]:9809")
    return host, int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = QUEUE
    block_on_close = False  # a client that hangs is no reason to wait

    def __init__(self, host: str, port: int, page: Page, metrics: Metrics) -> None:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.page = page
        self.metrics = metrics
        self._room = threading.Semaphore(MOST)
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """As it is, without asking DNS for a name that nobody needs."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.warning("metrics: a request failed: %r", sys.exception())


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version = "csi-multi"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            text, kind = self.server.metrics(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, text, kind)
        elif path == "/healthz":
            self._answer(HTTPStatus.OK, b"alive\n")
        elif path == "/readyz" and self.server.page.ready:
            self._answer(HTTPStatus.OK, b"serving\n")
        elif path == "/readyz":
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"not serving\n")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = PLAIN) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        log.debug("metrics: %s", format % words)
