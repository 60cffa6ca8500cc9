"""HTTP connections to EC2 that are kept open, each for one call at a time.

They are those of the standard library. botocore's own take three times as much of the processor for the same request.

Failures are botocore's exceptions, as its own connections raise them.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

FRESH_SECONDS = 1.0  # for which an unused connection is taken without a look whether the other end has closed it
UNUSED_SECONDS = 60.0  # after which an unused connection is closed


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]  # by name in lower case
    body: bytes


class Connections:
    """The connections to the host of a URL. Thread-safe."""

    def __init__(
        self, url: str, context: ssl.SSLContext | None, *, connect_seconds: float, read_seconds: float
    ) -> None:
        """`context` is for https. The time limits are for a connection, and for each part of an answer."""
        parts = urlsplit(url)
        self._url = url
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if context else 80)
        self._context = context
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds
        self._lock = threading.Lock()
        # Since when they are unused, time.monotonic(); the oldest first.
        self._unused: deque[tuple[float, http.client.HTTPConnection]] = deque()
        weakref.finalize(self, _close_all, self._unused)  # of a backend that was not closed, too

    def post(self, body: bytes, headers: dict[str, str]) -> HttpAnswer:
        """Send a request to the root of the host and return the answer. Raises botocore's exceptions."""
        connection = self._take() or self._connect()
        with self._botocore_errors(), _closing_after_error(connection):
            connection.request("POST", "/", body, headers)
            response = connection.getresponse()
            headers_read = {name.lower(): value.strip() for name, value in response.getheaders()}
            answer = HttpAnswer(response.status, headers_read, response.read())
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return answer

    def close(self) -> None:
        """Close the connections that are not in use."""
        _close_all(self._unused)

    def _take(self) -> http.client.HTTPConnection | None:
        """Return the connection that was used last; None without one. What has come unasked is the end of it."""
        while True:
            with self._lock:
                if not self._unused:
                    return None
                since, connection = self._unused.pop()
            if time.monotonic() - since < FRESH_SECONDS or not _has_input(connection):
                return connection
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        now, old = time.monotonic(), []
        with self._lock:
            self._unused.append((now, connection))
            while now - self._unused[0][0] > UNUSED_SECONDS:
                old.append(self._unused.popleft()[1])
        for one in old:
            one.close()

    def _connect(self) -> http.client.HTTPConnection:
        from botocore import exceptions

        connection = self._new()
        try:
            with _closing_after_error(connection):
                connection.connect()
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connection.sock.settimeout(self._read_seconds)
        except TimeoutError as error:
            raise exceptions.ConnectTimeoutError(endpoint_url=self._url, error=error) from error
        except ssl.SSLError as error:
            raise exceptions.SSLError(endpoint_url=self._url, error=error) from error
        except OSError as error:
            raise exceptions.EndpointConnectionError(endpoint_url=self._url, error=error) from error
        return connection

    def _new(self) -> http.client.HTTPConnection:
        if self._context:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_seconds, context=self._context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._connect_seconds)

    @contextmanager
    def _botocore_errors(self) -> Iterator[None]:
        from botocore import exceptions

        try:
            yield
        except TimeoutError as error:
            raise exceptions.ReadTimeoutError(endpoint_url=self._url, error=error) from error
        except ssl.SSLError as error:
            raise exceptions.SSLError(endpoint_url=self._url, error=error) from error
        except (OSError, http.client.IncompleteRead) as error:
            raise exceptions.ConnectionClosedError(endpoint_url=self._url, error=error) from error
        except (http.client.HTTPException, ValueError) as error:
            raise exceptions.HTTPClientError(error=error) from error


@contextmanager
def _closing_after_error(connection: http.client.HTTPConnection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _close_all(connections: deque[tuple[float, http.client.HTTPConnection]]) -> None:
    with suppress(IndexError):  # all are closed
        while True:
            connections.pop()[1].close()


def _has_input(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
