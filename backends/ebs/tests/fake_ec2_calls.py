"""A request to EC2, STS or Service Quotas, its response, and EC2's error responses."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from urllib.parse import urlencode
from xml.sax.saxutils import escape

STATUS_CODES = {  # EC2's error codes that come with a status of their own; all others are 400
    "InternalError": 500,
    "InternalFailure": 500,
    "InsufficientVolumeCapacity": 500,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "AuthFailure": 401,
    "UnauthorizedOperation": 403,
    "ResourceNotFoundException": 404,
    "InternalServerException": 500,
}
TAG_KEY = re.compile(r"(^|\.)Tag\.\d+\.Key$")  # in tag specifications, and in CreateTags
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Call:
    """A request: `params` are flat, as on the wire ("VolumeId.1")."""

    action: str
    params: Mapping[str, str]
    account: str
    region: str
    service: str = "ec2"

    def get(self, name: str, default: str = "") -> str:
        return self.params.get(name, default)

    def many(self, name: str) -> list[str]:
        """Return the values of a list, for example of VolumeId."""
        found: list[str] = []
        for number in itertools.count(1):
            value = self.params.get(f"{name}.{number}")
            if value is None:
                return found
            found.append(value)
        raise AssertionError

    def filters(self) -> dict[str, list[str]]:
        names = self.params
        found: dict[str, list[str]] = {}
        for number in itertools.count(1):
            if f"Filter.{number}.Name" not in names:
                return found
            found[names[f"Filter.{number}.Name"]] = self.many(f"Filter.{number}.Value")
        raise AssertionError

    def tags(self) -> list[tuple[str, str]]:
        """Return all tags, as they were sent."""
        keys = [name for name in self.params if TAG_KEY.search(name)]
        return [(self.params[key], self.params.get(f"{key.removesuffix('Key')}Value", "")) for key in keys]

    def but(self, changes: Mapping[str, str], without: str = "") -> Call:
        """Return the call with other parameters, and without those that start with a prefix."""
        kept = {key: value for key, value in self.params.items() if not (without and key.startswith(without))}
        return replace(self, action=changes.get("Action", self.action), params={**kept, **changes})

    def digest(self, *, without: str) -> str:
        """Return a digest of the parameters."""
        rest = {key: value for key, value in self.params.items() if key != without}
        return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()

    @property
    def body(self) -> bytes:
        return urlencode(self.params).encode()


class Refusal(Exception):
    """An error response of EC2."""

    def __init__(self, code: str, message: str = "", status: int = 0) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or f"{code}, from the simulated EC2."
        self.status = status or STATUS_CODES.get(code, 400)


class Dropped(Exception):
    """The connection breaks instead of an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    status: int = 200
    request: str = ""

    def numbered(self) -> Answer:
        """Return it with a request id that no other answer has."""
        request = f"fake-{next(_numbers):08d}"
        return replace(self, request=request, body=self.body.replace(b">request-id<", f">{request}<".encode()))


def answer(action: str, fields: Mapping[str, object]) -> Answer:
    """Return EC2's answer with these fields; a list is a list of items."""
    text = f"<{action}Response><requestId>request-id</requestId>{_inner(fields)}</{action}Response>"
    return Answer(text.encode())


def refused(service: str, refusal: Refusal) -> Answer:
    if service == "servicequotas":
        told = {"__type": refusal.code, "Message": refusal.message}
        return Answer(json.dumps(told).encode(), refusal.status)
    if service == "ebs":
        code, _, reason = refusal.code.partition(" ")
        told = {"__type": code, "Message": refusal.message, **({"Reason": reason} if reason else {})}
        return Answer(json.dumps(told).encode(), refusal.status)
    error = f"<Error><Code>{refusal.code}</Code><Message>{escape(refusal.message)}</Message></Error>"
    if service == "ec2":
        text = f"<Response><Errors>{error}</Errors><RequestID>request-id</RequestID></Response>"
    else:
        text = f"<ErrorResponse>{error}<RequestId>request-id</RequestId></ErrorResponse>"
    return Answer(text.encode(), refusal.status)


def _inner(value: object) -> str:
    if isinstance(value, Mapping):
        return "".join(f"<{key}>{_inner(inner)}</{key}>" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{_inner(inner)}</item>" for inner in value)
    return escape(str(value))
