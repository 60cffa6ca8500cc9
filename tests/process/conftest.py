"""RPCs of which only the headers are sent, and callers that do not read."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest


class HalfOpen:
    """RPCs that were begun over one channel, and whose message never comes."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._calls: list[Any] = []

    def begin(self, channel: grpc.Channel, method: str, count: int) -> list[Any]:
        begin = channel.stream_unary(method)
        calls = [begin.future(self._never(), timeout=120) for _ in range(count)]
        self._calls += calls
        return calls

    def _never(self) -> Iterator[bytes]:
        self._end.wait(120)
        yield from ()

    def close(self) -> None:
        for call in self._calls:
            call.cancel()
        self._end.set()


@pytest.fixture
def half_open() -> Iterator[Callable[..., list[Any]]]:
    """half_open(channel, "/csi.v1.Identity/Probe", 64) begins so many RPCs."""
    made = HalfOpen()
    yield made.begin
    made.close()


def silent_caller(path: Path, method: str, messages: int) -> socket.socket:
    """Call an RPC so many times over one HTTP/2 connection (RFC 9113), take none of the responses, and read nothing."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\0" + bytes([len(key)]) + key.encode() + bytes([len(fields[key])]) + fields[key].encode() for key in fields
    )
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(
        4, 0, 0, struct.pack(">HI", 4, 0)
    )  # SETTINGS: a window of 0 bytes
    for stream in range(1, 2 * messages, 2):
        sent += frame(1, 4, stream, block) + frame(0, 1, stream, struct.pack(">BI", 0, 0))  # HEADERS, an empty message
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.sendall(sent)
    return connection


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
