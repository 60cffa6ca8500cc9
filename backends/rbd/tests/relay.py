"""Connections to a port are passed on to a Unix socket: for a client in a guest whose driver runs outside."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 16


class Relay:
    """Listens on the address until it is closed; whoever connects talks to the socket."""

    def __init__(self, address: str, target: Path) -> None:
        self._target = target
        self._listening = socket.create_server((address, 0))
        self.endpoint = f"dns:///{address}:{self._listening.getsockname()[1]}"  # as gRPC takes it
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                one, _address = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(one,), daemon=True).start()

    def _pass_on(self, one: socket.socket) -> None:
        with one, socket.socket(socket.AF_UNIX) as other, suppress(OSError):
            other.connect(str(self._target))
            back = threading.Thread(target=_copy, args=(other, one), daemon=True)
            back.start()
            _copy(one, other)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass on until either side ends; then both do."""
    with suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
