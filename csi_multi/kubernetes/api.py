"""The Kubernetes API over plain HTTPS, with the files that every pod has.

Token and CA are read for every request, because the kubelet replaces them.
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
SLACK = 15.0  # seconds that an answer may take, beyond the time of a watch
PAGE = 500  # objects per page of a list
GONE = 410  # too old a version to watch from
MERGE = "application/merge-patch+json"

T = TypeVar("T")


class Expired(Exception):
    """The API does not know any more what has changed since then: list again."""


class Refused(Exception):
    """The API answered with an error."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


TROUBLE = (OSError, http.client.HTTPException, msgspec.DecodeError, Refused)  # what any request may end with


class ListMetadata(msgspec.Struct):
    version: str = msgspec.field(default="", name="resourceVersion")
    more: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    metadata: ListMetadata
    items: list[msgspec.Raw]


class Api:
    """One cluster's API. One request at a time: each has a connection of its own, which `close` cuts."""

    def __init__(self, server: str = "", credentials: str = CREDENTIALS) -> None:
        """`server` is an https URL; default: as every pod is told."""
        self._server, self._credentials = server, Path(credentials)
        self._line: socket.socket | None = None

    def get(self, path: str, kind: type[T]) -> T:
        """Return one object. Raises Refused, with the status, and what is in TROUBLE."""
        with self._ask("GET", path) as answer:
            return msgspec.json.decode(answer.read(), type=kind)

    def list(self, path: str, kind: type[T], query: dict[str, str] | None = None) -> tuple[list[T], str]:
        """Return all objects and the version to watch from."""
        found: list[T] = []
        more = ""
        while True:
            asked = {**(query or {}), "limit": str(PAGE), **({"continue": more} if more else {})}
            with self._ask("GET", f"{path}?{urlencode(asked)}") as answer:
                page = msgspec.json.decode(answer.read(), type=Page)
            found += [msgspec.json.decode(item, type=kind) for item in page.items]
            more = page.metadata.more
            if not more:
                return found, page.metadata.version

    def watch(self, path: str, version: str, seconds: int, query: dict[str, str] | None = None) -> Iterator[bytes]:
        """Yield events, each a line of JSON, until the watch ends. Raises Expired."""
        asked = {
            **(query or {}),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": version,
        }
        with self._ask("GET", f"{path}?{urlencode(asked)}", timeout=seconds + SLACK) as answer:
            while line := answer.readline():
                yield line

    def merge(self, path: str, change: object) -> None:
        """Change an object by a JSON merge patch; with metadata.resourceVersion in it, only if nobody did since."""
        with self._ask("PATCH", path, msgspec.json.encode(change)) as answer:
            answer.read()

    def close(self) -> None:
        """Cut the request that runs, from another thread.

        Only the line is cut: closing would wait for whoever reads from it. SSLSocket's own shutdown would pull the
        object away from under the reader.
        """
        if self._line:
            with suppress(OSError):
                socket.socket.shutdown(self._line, socket.SHUT_RDWR)

    @contextmanager
    def _ask(
        self, method: str, path: str, body: bytes | None = None, timeout: float = SLACK
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connect(timeout)
        token = (self._credentials / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        try:
            connection.connect()
            self._line = connection.sock
            connection.request(method, path, body, headers | ({"Content-Type": MERGE} if body else {}))
            answer = connection.getresponse()
            if answer.status == GONE:
                raise Expired
            if answer.status != http.client.OK:
                raise Refused(f"{answer.status} {answer.reason}", answer.status)
            yield answer
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        import ssl  # only where there is a cluster

        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        address = urlsplit(self._server or f"https://{f'[{host}]' if ':' in host else host}:{port}")
        if not address.hostname:
            raise Refused("its address is not known: KUBERNETES_SERVICE_HOST is not set")
        context = ssl.create_default_context(cafile=str(self._credentials / "ca.crt"))
        return http.client.HTTPSConnection(address.hostname, address.port or 443, timeout=timeout, context=context)
