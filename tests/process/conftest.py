"""RPCs of which only the headers are sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
