"""Makes EC2's calls in fewer steps than botocore takes.

botocore makes a call in a chain of events: it resolves the endpoint by rules, signs, wraps request and response several
times, and interprets the model anew for each field of each response. This takes from botocore the model, what turns
fields into a request, the endpoint, the credentials and what reads errors; signing.py signs, connections.py sends, and
a response is read with functions that are made once per shape.

Through a proxy, and to an endpoint with a path, botocore signs and sends.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

from .connections import Connections, HttpAnswer
from .signing import CONTENT_TYPE, Signer

Read = Callable[[Any], Any]
METADATA = "ResponseMetadata"


class Transport:
    """Makes the calls of one client of botocore for EC2. Thread-safe."""

    def __init__(self, client: Any, parser: Any, ca_bundle: str | None) -> None:
        """`parser` reads error responses. `ca_bundle`: the file of certificates, None for botocore's own."""
        from botocore.serialize import create_serializer

        options = client.meta.config
        self._client = client
        self._parser = parser
        self._serializer = create_serializer("ec2")
        self._url: str = client.meta.endpoint_url
        self._region: str = client.meta.region_name
        self._connections = Connections(
            self._url,
            _tls(self._url, ca_bundle),
            connect_seconds=options.connect_timeout,
            read_seconds=options.read_timeout,
        )
        self._signer = Signer(_host(self._url), self._region)
        self._send = self._by_botocore if _needs_botocore(self._url) else self._directly
        self._readers: dict[str, Read] = {}  # by operation
        self._lock = threading.Lock()

    def call(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Make a call. Raises botocore's exceptions."""
        from botocore.exceptions import ClientError

        model = self._client.meta.service_model.operation_model(name)
        body = urlencode(self._serializer.serialize_to_request(fields, model)["body"]).encode()
        answer = self._send(body)
        if answer.status >= 300:
            response = {"headers": answer.headers, "status_code": answer.status, "body": answer.body}
            raise ClientError(self._parser.parse(response, model.output_shape), name)
        read: dict[str, Any] = self._reader(model)(_root(answer.body))
        return read

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _directly(self, body: bytes) -> HttpAnswer:
        from botocore.exceptions import NoCredentialsError

        if (credentials := self._auth().credentials) is None:
            raise NoCredentialsError
        headers = self._signer.headers(body, credentials, datetime.now(UTC))
        return self._connections.post(body, {"User-Agent": self._client.meta.config.user_agent, **headers})

    def _by_botocore(self, body: bytes) -> HttpAnswer:
        from botocore.awsrequest import AWSRequest

        headers = {"Content-Type": CONTENT_TYPE, "User-Agent": self._client.meta.config.user_agent}
        request = AWSRequest("POST", self._url, headers, body)
        self._auth().add_auth(request)
        response = self._client._endpoint.http_session.send(request.prepare())
        return HttpAnswer(response.status_code, dict(response.headers), response.content)

    def _auth(self) -> Any:
        """Return botocore's signer with the credentials of this moment."""
        return self._client._request_signer.get_auth_instance("ec2", self._region, "v4")

    def _reader(self, model: Any) -> Read:
        if (found := self._readers.get(model.name)) is None:
            with self._lock:
                found = self._readers[model.name] = _answer_reader(model.output_shape)
        return found


def _needs_botocore(url: str) -> bool:
    """Whether calls go through a proxy, as the environment says, or the endpoint has a path."""
    from botocore.utils import get_environ_proxies

    return urlsplit(url).path not in ("", "/") or bool(get_environ_proxies(url))


def _host(url: str) -> str:
    """Return the header Host for a URL."""
    parts = urlsplit(url)
    name = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return name if parts.port in (None, {"http": 80, "https": 443}[parts.scheme]) else f"{name}:{parts.port}"


def _tls(url: str, ca_bundle: str | None) -> ssl.SSLContext | None:
    from botocore.httpsession import get_cert_path

    return ssl.create_default_context(cafile=get_cert_path(ca_bundle or True)) if url.startswith("https:") else None


def _root(body: bytes) -> Any:
    """Parse a response. Raises what botocore raises for one that is no XML."""
    from botocore.parsers import ResponseParserError

    try:
        return ElementTree.fromstring(body)  # noqa: S314 - it comes from EC2, and botocore reads it so too
    except ElementTree.ParseError as error:
        raise ResponseParserError(f"the response is not XML: {error}") from error


def _answer_reader(shape: Any) -> Read:
    read = _structure(shape) if shape is not None else lambda _: {}

    def answer(root: Any) -> dict[str, Any]:
        id = next((one.text for one in root if _name(one) in ("requestId", "RequestId")), "")
        return {**read(root), METADATA: {"RequestId": id, "HTTPStatusCode": 200}}

    return answer


def _structure(shape: Any) -> Read:
    """Return what reads a structure: the fields that are there, and not empty unless they are texts."""
    fields = {
        member.serialization.get("name", name): (name, _reader_of(member)) for name, member in shape.members.items()
    }

    by_tag: dict[str, tuple[str, Read] | None] = {}  # with the namespace, as it was read before

    def read(element: Any) -> dict[str, Any]:
        found = {}
        for child in element:
            if (tag := child.tag) not in by_tag:
                by_tag[tag] = fields.get(_name(child))
            if (field := by_tag[tag]) is not None:
                found[field[0]] = field[1](child)
        return found

    return read


def _reader_of(shape: Any) -> Read:
    if shape.type_name == "structure":
        return _structure(shape)
    if shape.type_name == "list":
        read_item = _reader_of(shape.member)
        return lambda element: [read_item(item) for item in element]
    return SCALARS[shape.type_name]


def _name(element: Any) -> str:
    """Return the name of an element without its namespace."""
    return str(element.tag).rpartition("}")[2]


SCALARS: dict[str, Read] = {
    "string": lambda element: element.text or "",
    "boolean": lambda element: element.text == "true",
    "integer": lambda element: int(element.text),
    "long": lambda element: int(element.text),
    "float": lambda element: float(element.text),
    "double": lambda element: float(element.text),
    "timestamp": lambda element: datetime.fromisoformat(element.text),
}
