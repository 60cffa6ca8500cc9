"""What a backend answers, held against the types of the contract.

The annotations of backend.py and model.py say what is right, so a check is compiled from each of
them once: a closure that returns "" for a good value, and else where and how it is wrong. Only the
forms of a few texts, and what an answer owes to its question, stand here beside them.
"""

from __future__ import annotations

import dataclasses
import enum
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
MAX_INTEGER = (1 << 63) - 1  # what the wire can carry


def check_of_method(function: Callable[..., Any]) -> Check:
    """Return the check of what a method of the contract returns."""
    hints = typing.get_type_hints(function, vars(contract))
    return check_of_type(hints["return"], function.__name__)


@cache
def check_of_type(annotation: Any, name: str = "") -> Check:
    """Return the check for an annotation; `name` is the field's or method's, for texts with a form."""
    origin = typing.get_origin(annotation) or annotation
    words = typing.get_args(annotation)
    if annotation is str:
        return FIELD_CHECKS.get(name, _check_text)
    if annotation in TYPE_CHECKS:
        return TYPE_CHECKS[annotation]
    if dataclasses.is_dataclass(origin):
        return _check_dataclass(origin, words)
    if origin in (typing.Union, types.UnionType):
        return _check_optional(check_of_type(next(one for one in words if one is not type(None)), name))
    if origin is tuple and words[1:] == (...,):
        return _check_tuple(check_of_type(words[0], name))
    if origin is Mapping:
        return _check_strings
    if isinstance(origin, type) and issubclass(origin, enum.Enum | Path | Iterator):
        return _check_instance(origin)
    raise TypeError(f"the contract returns {annotation}, which nothing here knows how to check")


def _check_dataclass(cls: Any, words: tuple[Any, ...]) -> Check:
    hints = typing.get_type_hints(cls)
    parts = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if words and (variables := [one for one in typing.get_args(hint) if isinstance(one, TypeVar)]):
            hint = hint[dict(zip(cls.__parameters__, words, strict=True))[variables[0]]]
        parts.append((field.name, check_of_type(hint, field.name)))
    rows = tuple(parts)

    def check(value: Any) -> str:
        if not isinstance(value, cls):
            return f" is {_describe(value)}, not a {cls.__name__}"
        for name, part in rows:
            if wrong := part(getattr(value, name)):
                return f".{name}{wrong}"
        return ""

    return check


def _check_optional(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def _check_tuple(check: Check) -> Check:
    def every(value: Any) -> str:
        if type(value) is not tuple:
            return f" is {_describe(value)}, not a tuple"
        for number, item in enumerate(value):
            if wrong := check(item):
                return f"[{number}]{wrong}"
        return ""

    return every


def _check_instance(cls: type) -> Check:
    return lambda value: "" if isinstance(value, cls) else f" is {_describe(value)}, not a {cls.__name__}"


def _check_strings(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f" is {_describe(value)}, not a mapping of str to str"
    for key, text in value.items():
        if wrong := _check_text(key) or _check_text(text):
            return f"[{_describe(key)}]{wrong}"
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
    return (
        "" if value.isascii() or _is_utf8(value) else f" is {_describe(value)}, which is not text that UTF-8 can carry"
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_handle(value: Any) -> str:
    """Part of an id: ids.join must give at most what CSI allows, whatever the instance is called."""
    if wrong := _check_cursor(value):
        return wrong
    return "" if value else " is empty"


def _check_cursor(value: Any) -> str:
    if wrong := _check_text(value):
        return wrong
    if len(value) > ids.MAX_HANDLE or len(value.encode()) > ids.MAX_HANDLE:
        return f" has {len(value.encode())} bytes, {ids.MAX_HANDLE} are allowed"
    if not value.isprintable() and any(ord(one) < 32 or 127 <= ord(one) < 160 for one in value):
        return f" {_describe(value)} contains a control character"
    return ""


def _check_pattern(pattern: Any) -> Check:
    def check(value: Any) -> str:
        return _check_text(value) or (
            "" if pattern.fullmatch(value) else f" is {_describe(value)}, not of {pattern.pattern}"
        )

    return check


def _describe(value: Any) -> str:
    """Name a value without asking it: its own repr may raise, be endless, or hold a secret."""
    if type(value) in (int, bool, type(None)):
        text = repr(value) if value is None or abs(value) <= MAX_INTEGER else "beyond 64 bits"
        return text if value is None else f"{type(value).__name__} {text}"
    return f"str {value[:40]!r}" if type(value) is str else f"a {type(value).__name__}"


TYPE_CHECKS: dict[Any, Check] = {
    type(None): lambda value: "" if value is None else f" is {_describe(value)}, but nothing is to be returned",
    bool: _check_instance(bool),
    int: _check_integer,
    datetime: _check_datetime,
}
FIELD_CHECKS: dict[str, Check] = {
    "handle": _check_handle,
    "source": _check_handle,
    "group": _check_cursor,  # empty: in no group
    "cursor": _check_cursor,  # of a token, which has an id's form and limit
    "node_of": _check_pattern(ids.NODE),
    "node_fact": _check_pattern(ids.FACT),
}


def foreign_stamp(answer: Any, driver: str, cluster: str) -> str:
    """Say which resource of an answer does not carry our stamp; "" when all do."""
    paged = isinstance(answer, Page)
    for number, item in enumerate(answer.items if paged else (answer,)):
        stamp = getattr(item, "stamp", None)
        if stamp is not None and (stamp.driver != driver or stamp.cluster != cluster):
            where = f".items[{number}]" if paged else ""
            return f"{where}.stamp is of driver {stamp.driver[:63]!r} and cluster {stamp.cluster[:63]!r}: not ours"
    return ""


def _stamp_mismatch(question: Any, answer: Any) -> str:
    return "" if answer.stamp == question.stamp else ".stamp is not the one that was to be stored"


def _name_mismatch(question: Any, answer: Any) -> str:
    return (
        "" if answer.stamp.name == question else f".stamp.name is {answer.stamp.name[:128]!r}, asked was {question!r}"
    )


def _handle_mismatch(question: Any, answer: Any) -> str:
    return "" if answer.handle == question else f".handle is {answer.handle!r}, asked was {question!r}"


# What an answer owes to the first argument of its method.
MATCHES_REQUEST: dict[str, Callable[[Any, Any], str]] = {
    **dict.fromkeys(("create_volume", "restore_volume", "clone_volume"), _stamp_mismatch),
    **dict.fromkeys(("create_snapshot", "create_group_snapshot"), _stamp_mismatch),
    **dict.fromkeys(("find_volume", "find_snapshot", "find_group_snapshot"), _name_mismatch),
    **dict.fromkeys(("get_volume", "get_snapshot", "get_group_snapshot"), _handle_mismatch),
}
