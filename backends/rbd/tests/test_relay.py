"""The relay between a client in the guest and the driver outside passes on everything, including both ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from .relay import Relay

LIMIT = 10.0  # seconds


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "driver.sock"))
        listening.listen()
        listening.settimeout(LIMIT)
        yield listening


def connected(relay: Relay) -> socket.socket:
    host, _, port = relay.endpoint.removeprefix("dns:///").partition(":")
    return socket.create_connection((host, int(port)), LIMIT)


def test_both_sides_hear_each_other_and_that_the_other_is_gone(listening: socket.socket, tmp_path: Path) -> None:
    with closing(Relay("127.0.0.1", tmp_path / "driver.sock")) as relay, connected(relay) as client:
        driver, _ = listening.accept()
        with driver:
            client.sendall(b"a" * 100_000)
            assert driver.recv(100_000, socket.MSG_WAITALL) == b"a" * 100_000
            driver.sendall(b"answer")
            assert client.recv(6, socket.MSG_WAITALL) == b"answer"

        assert client.recv(1) == b""


def test_a_driver_that_is_not_there_ends_the_connection(tmp_path: Path) -> None:
    with closing(Relay("127.0.0.1", tmp_path / "driver.sock")) as relay, connected(relay) as client:
        assert client.recv(1) == b""


def test_a_relay_that_was_closed_takes_nobody(tmp_path: Path) -> None:
    relay = Relay("127.0.0.1", tmp_path / "driver.sock")
    relay.close()

    with pytest.raises(OSError, match="refused"):
        connected(relay)
