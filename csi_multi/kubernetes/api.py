"""The Kubernetes API over plain HTTPS, with the token and the CA that every pod has.

Both files are read for every request, because the kubelet replaces them.
"""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

CREDENTIALS = "/var/run/secrets/kubernetes.io/serviceaccount"
RESPONSE_TIMEOUT = 15.0  # seconds, in addition to the time of a watch
PAGE_SIZE = 500  # objects per page of a list
GONE = 410  # the version is too old to watch from
MERGE_PATCH = "application/merge-patch+json"

T = TypeVar("T")


class WatchExpired(Exception):
    """The API no longer knows the changes since this version; list again."""


class RequestRefused(Exception):
    """The API answered with an error."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class ServerNotKnown(RequestRefused):
    """The process does not run in a pod."""


API_ERRORS = (OSError, http.client.HTTPException, msgspec.DecodeError, RequestRefused)  # any request may raise them


class ListMetadata(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")
    continue_token: str = msgspec.field(default="", name="continue")


class ObjectList(msgspec.Struct):
    metadata: ListMetadata
    items: list[msgspec.Raw]


class WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class StatusObject(msgspec.Struct):
    """The object of an ERROR event."""

    code: int = 0


class KubernetesApi:
    """The API of one cluster. It runs one request at a time, each on its own connection, which `close` breaks."""

    def __init__(self, server: str = "", credentials: str = CREDENTIALS) -> None:
        """`server` is an https URL; by default the one in the environment of every pod."""
        self._server, self._credentials = server, Path(credentials)
        self._socket: socket.socket | None = None

    def get(self, path: str, kind: type[T]) -> T:
        """Return one object. Raises RequestRefused, with the status, and the other API_ERRORS."""
        with self._request("GET", path) as response:
            return msgspec.json.decode(response.read(), type=kind)

    def list_objects(self, path: str, kind: type[T], query: dict[str, str] | None = None) -> tuple[list[T], str]:
        """Return all objects, and the version to watch from."""
        found: list[T] = []
        token = ""
        while True:
            parameters = {**(query or {}), "limit": str(PAGE_SIZE), **({"continue": token} if token else {})}
            with self._request("GET", f"{path}?{urlencode(parameters)}") as response:
                page = msgspec.json.decode(response.read(), type=ObjectList)
            found += [msgspec.json.decode(item, type=kind) for item in page.items]
            token = page.metadata.continue_token
            if not token:
                return found, page.metadata.version

    def watch(
        self, path: str, kind: type[T], version: str, seconds: int, query: dict[str, str] | None = None
    ) -> Iterator[tuple[str, T]]:
        """Yield the type and the object of each event until the watch ends. Raises WatchExpired."""
        parameters = {
            **(query or {}),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": version,
        }
        with self._request("GET", f"{path}?{urlencode(parameters)}", timeout=seconds + RESPONSE_TIMEOUT) as response:
            while line := response.readline():
                event = msgspec.json.decode(line, type=WatchEvent)
                if event.type == "ERROR":
                    expired = msgspec.json.decode(event.object, type=StatusObject).code == GONE
                    raise WatchExpired if expired else RequestRefused(line.decode(errors="replace")[:200])
                yield event.type, msgspec.json.decode(event.object, type=kind)

    def merge(self, path: str, change: object) -> None:
        """Apply a JSON merge patch. With metadata.resourceVersion in it, it fails if the object has changed since."""
        with self._request("PATCH", path, msgspec.json.encode(change)) as response:
            response.read()

    def close(self) -> None:
        """Break the running request, from another thread.

        The socket is only shut down: closing it would wait for its reader. SSLSocket's own shutdown would remove the
        object that the reader uses.
        """
        if self._socket:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None, timeout: float = RESPONSE_TIMEOUT
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection(timeout)
        token = (self._credentials / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        try:
            connection.connect()
            self._socket = connection.sock
            connection.request(method, path, body, headers | ({"Content-Type": MERGE_PATCH} if body else {}))
            response = connection.getresponse()
            if response.status == GONE:
                raise WatchExpired
            if response.status != http.client.OK:
                raise RequestRefused(f"{response.status} {response.reason}", response.status)
            yield response
        finally:
            connection.close()

    def _connection(self, timeout: float) -> http.client.HTTPSConnection:
        import ssl  # only needed in a cluster

        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        address = urlsplit(self._server or f"https://{f'[{host}]' if ':' in host else host}:{port}")
        if not address.hostname:
            raise ServerNotKnown(
                "the address of the API server is not known, because KUBERNETES_SERVICE_HOST is not set; run in a pod"
            )
        context = ssl.create_default_context(cafile=str(self._credentials / "ca.crt"))
        return http.client.HTTPSConnection(address.hostname, address.port or 443, timeout=timeout, context=context)
