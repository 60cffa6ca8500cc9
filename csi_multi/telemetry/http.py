"""The HTTP port for metrics: /metrics, and two answers for supervisors and load balancers.

/healthz says that the process runs, /readyz that it serves RPCs. Neither calls a storage system, because a restart of
the driver does not repair a storage system.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..rpc.endpoint import EndpointError

log = logging.getLogger(__name__)

RenderMetrics = Callable[[str], tuple[bytes, str]]  # the Accept header -> (the text, its content type)

REQUEST_TIMEOUT = 10.0  # seconds for a request to arrive
MAX_REQUESTS = 16  # at once; each further one ends the oldest, so that no client can keep the port from the others
BACKLOG = 64  # connections that wait to be accepted
POLL_INTERVAL = 3600.0  # seconds between checks whether to stop; `close` wakes the thread
PLAIN_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files, which are read for each connection, so that they can be replaced at any time."""

    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """Raises OSError, also while only one of the files has been replaced."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key, password="")  # never prompt for one
        return context

    def validate(self) -> None:
        """Raises EndpointError."""
        try:
            self.context()
        except OSError as error:
            raise EndpointError(
                f"driver.metrics_certificate: {self.certificate} and {self.key} cannot be used: {error}; give a "
                "certificate and its key as PEM files that the driver can read"
            ) from None


class MetricsServer:
    """Listens as soon as it is created, and answers in threads of its own."""

    def __init__(self, address: str, render: RenderMetrics, certificate: CertificateFiles | None = None) -> None:
        """Raises EndpointError for an address or files that cannot be used."""
        self.ready = False
        host, port = parse_address(address)
        if certificate:
            certificate.validate()
        try:
            self._http = _HttpServer(host, port, self, render, certificate)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name of DNS has such a label
            reason = getattr(error, "strerror", None) or error
            raise EndpointError(
                f"driver.metrics: cannot listen on {address}: {reason}; choose another address or port"
            ) from None
        self.address = "{}:{}".format(*self._http.server_address[:2])
        serve = self._http.serve_forever
        self._thread = threading.Thread(target=serve, args=(POLL_INTERVAL,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        self._http.shutdown()
        self._http.server_close()


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of "host:port"; an IPv6 host is in brackets. Raises EndpointError."""
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or int(port) > 65535 or (":" in host and not address.startswith("[")):
        raise EndpointError(f"driver.metrics: {address!r} is not HOST:PORT, for example 127.0.0.1:9809 or [::1]:9809")
    return host, int(port)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = BACKLOG
    block_on_close = False  # do not wait for a client that hangs

    def __init__(
        self, host: str, port: int, owner: MetricsServer, render: RenderMetrics, certificate: CertificateFiles | None
    ) -> None:
        family, _, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.owner = owner
        self.render = render
        self._certificate = certificate
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # the oldest first
        super().__init__(socket_address[:2], _RequestHandler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind without the DNS query of HTTPServer, whose result is not used."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._certificate:  # the handshake waits for the client, so it is made in the thread of the request
            context = self._certificate.context()
            request = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            if len(self._open) >= MAX_REQUESTS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _end(oldest)
            self._open[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                request.settimeout(REQUEST_TIMEOUT)
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError as error:
            log.debug("metrics port: no TLS with %s: %s", client_address[0], error)
            self.shutdown_request(request)
        finally:
            self._forget(request)

    def shutdown_request(self, request: Any) -> None:
        self._forget(request)  # before it is closed, because another connection may then get its descriptor
        super().shutdown_request(request)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.warning("metrics port: a request failed: %r", sys.exception())


def _end(connection: socket.socket) -> None:
    """Wake the thread that reads from the connection or writes to it; it then closes it."""
    with suppress(OSError):  # the client has closed it
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # SSLSocket's own would take the reader's object away


class _RequestHandler(BaseHTTPRequestHandler):
    server: _HttpServer
    timeout = REQUEST_TIMEOUT
    server_version = "csi-multi"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            text, content_type = self.server.render(self.headers.get("Accept", ""))
            self._respond(HTTPStatus.OK, text, content_type)
        elif path == "/healthz":
            self._respond(HTTPStatus.OK, b"alive\n")
        elif path == "/readyz" and self.server.owner.ready:
            self._respond(HTTPStatus.OK, b"serving\n")
        elif path == "/readyz":
            self._respond(HTTPStatus.SERVICE_UNAVAILABLE, b"not serving\n")
        else:
            self._respond(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")

    def _respond(self, status: HTTPStatus, body: bytes, content_type: str = PLAIN_TEXT) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics: %s", format % args)
