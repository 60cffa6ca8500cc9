"""The JSON that commands print, read as values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from .errors import CephCommandFailed

A = TypeVar("A")
T = TypeVar("T")


def parse_json(command: str, text: str, reader: Callable[[Any], T]) -> T:
    """Return what `reader` makes of a command's JSON. Raises CephCommandFailed when it is not what was expected."""
    return read(command, text, lambda text: reader(msgspec.json.decode(text)))


def read(command: str, output: A, reader: Callable[[A], T]) -> T:
    """Return what `reader` makes of a command's output. Raises CephCommandFailed when it is not what was expected."""
    try:
        return reader(output)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise CephCommandFailed(
            f"{command} printed output that this driver does not understand: {error!r}; the versions of Ceph that it "
            "is tested with are in docs/rbd.md"
        ) from None


def documents(text: str) -> list[Any]:
    """Return the values of JSON texts that follow each other, which msgspec does not read."""
    decoder, found, at = json.JSONDecoder(), list[Any](), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found
