"""Connections to EC2: what is read, what is used again, and which of botocore's exceptions tells what went wrong."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from botocore import exceptions
from csi_multi_ebs import connections
from csi_multi_ebs.connections import Connections

EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Peer:
    """A server that answers each request with the next of these texts; None: it closes the connection."""

    def __init__(self, *answers: bytes | None, context: ssl.SSLContext | None = None) -> None:
        self._answers = iter(answers)
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.closed = threading.Event()  # it has closed a connection
        self.accepted = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                connection, _ = self._listener.accept()
                with suppress(OSError):
                    self._answer(connection)

    def _answer(self, plain: socket.socket) -> None:
        self.accepted += 1
        with plain, self._context.wrap_socket(plain, server_side=True) if self._context else plain as connection:
            while connection.recv(4096) and (answer := next(self._answers, None)) is not None:
                connection.sendall(answer)
                if not answer.startswith(b"HTTP/1.1") or b"close" in answer:
                    break
        self.closed.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def opened() -> Iterator[list[Peer | Connections]]:
    opened: list[Peer | Connections] = []
    yield opened
    for one in reversed(opened):
        one.close()


@pytest.fixture
def connect(opened: list[Peer | Connections]) -> object:
    def connect(*answers: bytes | None, read_seconds: float = 30) -> tuple[Connections, Peer]:
        opened.append(peer := Peer(*answers))
        opened.append(made := to(peer, read_seconds=read_seconds))
        return made, peer

    return connect


def to(peer: Peer, context: ssl.SSLContext | None = None, read_seconds: float = 30) -> Connections:
    url = f"http{'s' if context else ''}://127.0.0.1:{peer.port}"
    return Connections(url, context, connect_seconds=30, read_seconds=read_seconds)


BODIES = {
    "of a known length": b"Content-Length: 5\r\n\r\nhello",
    "in chunks": b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "in chunks, with a trailer": b"transfer-encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    "after an interim answer": b"Content-Length: 5\r\n\r\nhello",
    "until the end": b"Connection: close\r\n\r\nhello",
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_is_read(connect, kind: str) -> None:  # type: ignore[no-untyped-def]
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" if "interim" in kind else b""
    ec2, _ = connect(interim + b"HTTP/1.1 203 Fine\r\nX-Request: 7 \r\n" + BODIES[kind])

    answer = ec2.post(b"", {})

    assert (answer.status, answer.body, answer.headers["x-request"]) == (203, b"hello", "7")


@pytest.mark.parametrize("kind", BODIES)
def test_a_connection_is_used_again_unless_the_other_end_closes_it(connect, kind: str) -> None:  # type: ignore[no-untyped-def]
    ec2, peer = connect(b"HTTP/1.1 200 OK\r\n" + BODIES[kind], EMPTY, EMPTY)

    for _ in range(3):
        ec2.post(b"", {})
    assert peer.accepted == (2 if "until the end" in kind else 1)


def test_a_connection_that_was_closed_while_it_was_unused_is_not_used(connect, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.0)
    ec2, peer = connect(EMPTY, EMPTY)
    ec2.post(b"", {})
    ((_, unused),) = ec2._unused
    unused.sock.shutdown(socket.SHUT_RDWR)
    assert peer.closed.wait(30)

    assert ec2.post(b"", {}).status == 200
    assert peer.accepted == 2


def test_connections_that_nobody_needs_are_closed(connect, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connections, "UNUSED_SECONDS", 0.0)
    ec2, peer = connect(EMPTY)
    first, second = ec2._connect(), ec2._connect()

    for one in (first, second):
        ec2._keep(one)
    assert peer.closed.wait(30)  # the first one
    assert [one for _, one in ec2._unused] == [second]


def test_connections_of_a_client_that_was_dropped_are_closed(opened) -> None:  # type: ignore[no-untyped-def]
    opened.append(peer := Peer(EMPTY))
    to(peer).post(b"", {})

    assert peer.closed.wait(30)


FAILURES = {
    "closed": (None, exceptions.ConnectionClosedError),
    "closed in the middle": (b"HTTP/1.1 200 close\r\nContent-Length: 7\r\n\r\nhel", exceptions.ConnectionClosedError),
    "closed in a chunk": (
        b"HTTP/1.1 200 close\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
        exceptions.ConnectionClosedError,
    ),
    "no HTTP": (b"SSH-2.0\r\n\r\n", exceptions.HTTPClientError),
    "no end of the head": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, exceptions.HTTPClientError),
}


@pytest.mark.parametrize(("answer", "error"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_botocores(connect, answer: bytes | None, error: type[Exception]) -> None:  # type: ignore[no-untyped-def]
    ec2, peer = connect(answer, EMPTY)

    with pytest.raises(error):
        ec2.post(b"", {})
    assert ec2.post(b"", {}).status == 200
    assert peer.accepted == 2


def test_an_answer_that_does_not_come_is_a_timeout(connect) -> None:  # type: ignore[no-untyped-def]
    ec2, _ = connect(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nhel", read_seconds=0.05)

    with pytest.raises(exceptions.ReadTimeoutError):
        ec2.post(b"", {})


def test_a_host_that_nobody_listens_at_cannot_be_reached(connect) -> None:  # type: ignore[no-untyped-def]
    ec2, _ = connect()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        ec2._port = gone.getsockname()[1]

    with pytest.raises(exceptions.EndpointConnectionError):
        ec2.post(b"", {})


def test_a_host_has_to_prove_its_name(opened, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout {key} -out "
    extension = ["-subj", "/CN=ec2", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command.split(), str(certificate), *extension], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    opened.append(peer := Peer(EMPTY, context=server))
    trusted, others = (ssl.create_default_context(cafile=cafile) for cafile in (certificate, None))
    opened += [known := to(peer, trusted), unknown := to(peer, others)]

    with pytest.raises(exceptions.SSLError):
        unknown.post(b"", {})
    assert known.post(b"", {}).status == 200
