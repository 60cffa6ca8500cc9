"""The port for metrics: its answers, its address, its limits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from csi_multi.rpc.endpoint import EndpointError
from csi_multi.telemetry import http as pages
from csi_multi.telemetry.http import MetricsServer, parse_address


def show(accepted: str) -> tuple[bytes, str]:
    return b"metric 1\n", "text/plain"


@pytest.fixture
def page() -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", show)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("path", "status"), [("/metrics", 200), ("/metrics?name=x", 200), ("/healthz", 200), ("/readyz", 503), ("/x", 404)]
)
def test_each_path_has_its_answer(page: MetricsServer, fetch: Any, path: str, status: int) -> None:
    assert fetch(page.address, path)[0] == status


def test_it_is_ready_once_rpcs_are_served_and_alive_before(page: MetricsServer, fetch: Any) -> None:
    page.ready = True

    assert fetch(page.address, "/readyz") == (200, "serving\n")


def test_a_port_that_is_taken_is_named(page: MetricsServer) -> None:
    with pytest.raises(
        EndpointError, match=rf"cannot listen on {page.address}: Address already in use; choose another"
    ):
        MetricsServer(page.address, show)


@pytest.mark.parametrize("address", ["9809", ":9809", "localhost:", "localhost:99999", "::1:9809", "localhost:http"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(EndpointError, match=r"is not HOST:PORT, for example 127\.0\.0\.1:9809"):
        parse_address(address)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert parse_address("[::1]:9809") == ("::1", 9809)


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(EndpointError, match=r"cannot listen on 203\.0\.113\.1:0: Cannot assign requested address"):
        MetricsServer("203.0.113.1:0", show)


def test_a_host_that_nobody_knows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*words: Any, **named: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)

    with pytest.raises(EndpointError, match="cannot listen on host:1: Name or service not known"):
        MetricsServer("host:1", show)


def test_a_host_that_can_be_no_name_is_an_error() -> None:
    with pytest.raises(EndpointError, match=r"cannot listen on a{100}:1: .*choose another address"):
        MetricsServer("a" * 100 + ":1", show)


@pytest.fixture
def connect(page: MetricsServer) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def one() -> socket.socket:
        host, port = page.address.split(":")
        opened.append(socket.create_connection((host, int(port)), timeout=20))
        return opened[-1]

    yield one
    for each in opened:
        each.close()


def test_clients_that_hang_cost_no_more_than_a_few_threads(
    page: MetricsServer, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages._RequestHandler, "timeout", 600)  # so that their own time limit ends none of them
    before = threading.active_count()
    hanging = [connect() for _ in range(pages.MAX_REQUESTS + 5)]

    assert [one.recv(1) for one in hanging[:5]] == [b""] * 5, "the oldest are closed at once"
    assert threading.active_count() - before <= pages.MAX_REQUESTS + 5


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.0\r\nX-Slow: ", b"GET /metrics HTTP/1.0\r\n\r\n"])
def test_slow_clients_do_not_keep_the_port_from_others(
    sent: bytes, page: MetricsServer, fetch: Any, connect: Callable[[], socket.socket]
) -> None:
    """They send nothing, or half of a request, or do not read the answer."""
    for _ in range(3 * pages.MAX_REQUESTS):
        connect().sendall(sent)

    assert [fetch(page.address) for _ in range(3)] == [(200, "metric 1\n")] * 3


def test_threads_that_cannot_be_started_leave_the_port_usable(
    page: MetricsServer, fetch: Any, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert [connect().recv(1) for _ in range(pages.MAX_REQUESTS + 1)] == [b""] * (pages.MAX_REQUESTS + 1)

    assert fetch(page.address) == (200, "metric 1\n")


def test_what_goes_wrong_is_no_end_of_it(stream: Any, fetch: Any) -> None:
    answers = iter([KeyError("x"), (b"fine\n", "text/plain")])

    def sometimes(accepted: str) -> tuple[bytes, str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    page = MetricsServer("127.0.0.1:0", sometimes)
    with pytest.raises(OSError, match="closed"):
        fetch(page.address)
    assert fetch(page.address) == (200, "fine\n")
    page.close()
    assert "a request failed: KeyError('x')" in stream.getvalue()
