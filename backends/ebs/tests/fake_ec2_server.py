"""The HTTP server of the simulated EC2: HTTP/1.1 on loopback, with persistent connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .fake_ec2_calls import Answer, Dropped

Serve = Callable[[bytes, str], Answer]  # the body (of a GET the path) and the header Authorization -> the answer


def _drop(body: bytes, authorization: str) -> Answer:
    """Answer between two tests: break the connection."""
    raise Dropped


class Ec2Server(ThreadingHTTPServer):
    daemon_threads = False  # they are joined when it closes
    request_queue_size = 1024

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.serve: Serve = _drop
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="fake-ec2")
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def close(self) -> None:
        """Stop, break every connection, and wait until all threads have ended."""
        self.shutdown()
        self._thread.join()
        for connection in list(self._connections):
            connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that a killed client breaks."""


class _Request(BaseHTTPRequestHandler):
    server: Ec2Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet for headers and body

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        try:
            answer = self.server.serve(body, self.headers.get("Authorization", ""))
        except Dropped:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/xml;charset=UTF-8")
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("x-amzn-requestid", answer.request)
        self.end_headers()
        self.wfile.write(answer.body)

    def do_GET(self) -> None:
        """The EBS direct APIs: the path says all."""
        self._answer(self.path.encode())

    def log_message(self, format: str, *words: object) -> None:
        """Log nothing: tests read FakeEc2.seen."""
