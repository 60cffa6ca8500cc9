"""Checks of a backend's responses against the types of the contract.

A check is compiled once from each annotation of backend.py and model.py: a function that returns "" for a
valid value, else where and how the value is wrong. Written by hand are only the patterns of a few texts, and the
rules that tie a response to its request (MATCHES_REQUEST).
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from ..contract import backend as contract
from ..contract import ids
from ..contract.model import Page

Check = Callable[[Any], str]
METRIC_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MAX_INTEGER = (1 << 63) - 1  # the largest integer of CSI messages


@cache
def check_of_method(function: Callable[..., Any]) -> Check:
    """Return the check of a contract method's response."""
    hints = typing.get_type_hints(function, vars(contract))
    return check_of_type(hints["return"], function.__name__)


@cache
def check_of_type(annotation: Any, name: str = "") -> Check:
    """Return the check for an annotation; `name` is the field or method, for texts that have a pattern."""
    origin = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if annotation is str:
        return FIELD_CHECKS.get(name, _check_text)
    if annotation in TYPE_CHECKS:
        return TYPE_CHECKS[annotation]
    if dataclasses.is_dataclass(origin):
        return _check_dataclass(origin, arguments)
    if origin in (typing.Union, types.UnionType):
        return _check_optional(check_of_type(next(one for one in arguments if one is not type(None)), name))
    if origin is tuple and arguments[1:] == (...,):
        return _check_tuple(check_of_type(arguments[0], name))
    if origin is Mapping:
        return _check_strings
    if isinstance(origin, type) and issubclass(origin, enum.Enum | Path | Iterator):
        return _check_instance(origin)
    raise TypeError(f"no check exists for the contract's type {annotation}; add one to response_check.py")


def _check_dataclass(cls: Any, arguments: tuple[Any, ...]) -> Check:
    hints = typing.get_type_hints(cls)
    fields = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if arguments and (variables := [one for one in typing.get_args(hint) if isinstance(one, TypeVar)]):
            hint = hint[dict(zip(cls.__parameters__, arguments, strict=True))[variables[0]]]
        fields.append((field.name, check_of_type(hint, field.name)))
    checks = tuple(fields)

    def check(value: Any) -> str:
        if not isinstance(value, cls):
            return f" is {_describe(value)}, not a {cls.__name__}"
        for name, check_field in checks:
            if problem := check_field(getattr(value, name)):
                return f".{name}{problem}"
        return ""

    return check


def _check_optional(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def _check_tuple(check: Check) -> Check:
    def every(value: Any) -> str:
        if type(value) is not tuple:
            return f" is {_describe(value)}, not a tuple"
        for number, item in enumerate(value):
            if problem := check(item):
                return f"[{number}]{problem}"
        return ""

    return every


def _check_instance(cls: type) -> Check:
    return lambda value: "" if isinstance(value, cls) else f" is {_describe(value)}, not a {cls.__name__}"


def _check_strings(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f" is {_describe(value)}, not a mapping of str to str"
    for key, text in value.items():
        if problem := _check_text(key) or _check_text(text):
            return f"[{_describe(key)}]{problem}"
    return ""


def _check_integer(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INTEGER:
        return ""
    return f" is {_describe(value)}, not a whole number from 0 to {MAX_INTEGER}"


def _check_datetime(value: Any) -> str:
    if not isinstance(value, datetime):
        return f" is {_describe(value)}, not a datetime"
    return "" if value.utcoffset() is not None else " has no time zone"


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        return f" is {_describe(value)}, not a str"
    return "" if value.isascii() or _is_utf8(value) else f" is {_describe(value)}, which UTF-8 cannot encode"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_handle(value: Any) -> str:
    """A handle is a part of an id, and ids have a limit; so it has one too, whatever the instance is called."""
    if problem := _check_cursor(value):
        return problem
    return "" if value else " is empty"


def _check_cursor(value: Any) -> str:
    if problem := _check_text(value):
        return problem
    if len(value) > ids.MAX_HANDLE or len(value.encode()) > ids.MAX_HANDLE:
        return f" has {len(value.encode())} bytes; at most {ids.MAX_HANDLE} are allowed"
    if not value.isprintable() and any(ord(one) < 32 or 127 <= ord(one) < 160 for one in value):
        return f" {_describe(value)} contains a control character"
    return ""


def _check_pattern(pattern: Any) -> Check:
    def check(value: Any) -> str:
        return _check_text(value) or (
            "" if pattern.fullmatch(value) else f" is {_describe(value)}, which does not match {pattern.pattern}"
        )

    return check


def _describe(value: Any) -> str:
    """Describe a value without calling its own repr, which may raise, be endless, or hold a secret."""
    if type(value) in (int, bool, type(None)):
        text = repr(value) if value is None or abs(value) <= MAX_INTEGER else "beyond 64 bits"
        return text if value is None else f"{type(value).__name__} {text}"
    return f"str {value[:40]!r}" if type(value) is str else f"a {type(value).__name__}"


TYPE_CHECKS: dict[Any, Check] = {
    type(None): lambda value: "" if value is None else f" is {_describe(value)}, but the method returns None",
    bool: _check_instance(bool),
    int: _check_integer,
    float: lambda value: "" if type(value) in (int, float) else f" is {_describe(value)}, not a number",
    datetime: _check_datetime,
}
FIELD_CHECKS: dict[str, Check] = {
    "handle": _check_handle,
    "source": _check_handle,
    "group": _check_cursor,  # "": in no group
    "cursor": _check_cursor,  # it becomes part of a token, which has the pattern and limit of an id
    "metric_name": _check_pattern(METRIC_NAME),
    "node_of": _check_pattern(ids.NODE),
    "node_fact": _check_pattern(ids.FACT),
}


def foreign_stamp(response: Any, driver: str, cluster: str) -> str:
    """Return which resource of a response has the stamp of another driver or cluster; "" when none has."""
    paged = isinstance(response, Page)
    for number, item in enumerate(response.items if paged else (response,)):
        stamp = getattr(item, "stamp", None)
        if stamp is not None and (stamp.driver != driver or stamp.cluster != cluster):
            where = f".items[{number}]" if paged else ""
            return f"{where}.stamp belongs to driver {stamp.driver[:63]!r}, cluster {stamp.cluster[:63]!r}, not to ours"
    return ""


def _stamp_mismatch(request: Any, response: Any) -> str:
    return "" if response.stamp == request.stamp else ".stamp is not the stamp of the request"


def _name_mismatch(name: Any, response: Any) -> str:
    found = response.stamp.name
    return "" if found == name else f".stamp.name is {found[:128]!r}, but the request was for {name!r}"


def _handle_mismatch(handle: Any, response: Any) -> str:
    return "" if response.handle == handle else f".handle is {response.handle!r}, but the request was for {handle!r}"


# By method: how its response must match its first argument.
MATCHES_REQUEST: dict[str, Callable[[Any, Any], str]] = {
    **dict.fromkeys(("create_volume", "restore_volume", "clone_volume"), _stamp_mismatch),
    **dict.fromkeys(("create_snapshot", "create_group_snapshot"), _stamp_mismatch),
    **dict.fromkeys(("find_volume", "find_snapshot", "find_group_snapshot"), _name_mismatch),
    **dict.fromkeys(("get_volume", "get_snapshot", "get_group_snapshot"), _handle_mismatch),
}
