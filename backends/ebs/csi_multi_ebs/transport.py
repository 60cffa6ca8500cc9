"""Signs, sends and reads EC2's calls in fewer steps than botocore takes.

botocore makes a call in a chain of events: it signs by one, wraps request and response several times, and interprets
the model anew for each field of each response. The event before-call lets a handler answer instead. This one takes the
request as botocore has serialized it, and botocore's own signer, credentials and connections, and reads the response
with functions that are made once per shape. An error response is left to botocore's parser.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

Read = Callable[[Any], Any]
METADATA = "ResponseMetadata"


class Transport:
    """Makes the calls of one client. Thread-safe."""

    def __init__(self, client: Any, parser: Any) -> None:
        """`parser` reads error responses."""
        from botocore.awsrequest import AWSRequest

        self._new_request: Any = AWSRequest
        self._http = client._endpoint.http_session
        self._region = client.meta.region_name
        self._parser = parser
        self._readers: dict[str, Read] = {}  # by operation
        self._lock = threading.Lock()

    def install(self, client: Any) -> None:
        """Let the client make its calls here."""
        client.meta.events.register_last("before-call.ec2", self._call)

    def _call(self, model: Any, params: Any, request_signer: Any, **_: Any) -> tuple[Any, dict[str, Any]]:
        """Return the HTTP response and what it says, as a handler of before-call does."""
        request = self._new_request(params["method"], params["url"], params["headers"], params["body"])
        request_signer.get_auth_instance("ec2", self._region, "v4").add_auth(request)
        response = self._http.send(request.prepare())
        if response.status_code >= 300:
            answer = {"headers": response.headers, "status_code": response.status_code, "body": response.content}
            return response, self._parser.parse(answer, model.output_shape)
        return response, self._reader(model)(_root(response.content))

    def _reader(self, model: Any) -> Read:
        if (found := self._readers.get(model.name)) is None:
            with self._lock:
                found = self._readers[model.name] = _answer_reader(model.output_shape)
        return found


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
