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
MOST = (1 << 63) - 1  # what the wire can carry


def of_method(function: Callable[..., Any]) -> Check:
    """Return the check of what a method of the contract returns."""
    hints = typing.get_type_hints(function, vars(contract))
    return compiled(hints["return"], function.__name__)


@cache
def compiled(annotation: Any, name: str = "") -> Check:
    """Return the check for an annotation; `name` is the field's or method's, for texts with a form."""
    origin = typing.get_origin(annotation) or annotation
    words = typing.get_args(annotation)
    if annotation is str:
        return FORMS.get(name, _text)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if dataclasses.is_dataclass(origin):
        return _record(origin, words)
    if origin in (typing.Union, types.UnionType):
        return _optional(compiled(next(one for one in words if one is not type(None)), name))
    if origin is tuple and words[1:] == (...,):
        return _items(compiled(words[0], name))
    if origin is Mapping:
        return _strings
    if isinstance(origin, type) and issubclass(origin, enum.Enum | Path | Iterator):
        return _one_of(origin)
    raise TypeError(f"the contract returns {annotation}, which nothing here knows how to check")


def _record(cls: Any, words: tuple[Any, ...]) -> Check:
    hints = typing.get_type_hints(cls)
    parts = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if words and (variables := [one for one in typing.get_args(hint) if isinstance(one, TypeVar)]):
            hint = hint[dict(zip(cls.__parameters__, words, strict=True))[variables[0]]]
        parts.append((field.name, compiled(hint, field.name)))
    rows = tuple(parts)

    def check(value: Any) -> str:
        if not isinstance(value, cls):
            return f" is {_shown(value)}, not a {cls.__name__}"
        for name, part in rows:
            if wrong := part(getattr(value, name)):
                return f".{name}{wrong}"
        return ""

    return check


def _optional(check: Check) -> Check:
    return lambda value: "" if value is None else check(value)


def _items(check: Check) -> Check:
    def every(value: Any) -> str:
        if type(value) is not tuple:
            return f" is {_shown(value)}, not a tuple"
        for number, item in enumerate(value):
            if wrong := check(item):
                return f"[{number}]{wrong}"
        return ""

    return every


def _one_of(cls: type) -> Check:
    return lambda value: "" if isinstance(value, cls) else f" is {_shown(value)}, not a {cls.__name__}"


def _strings(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f" is {_shown(value)}, not a mapping of str to str"
    for key, text in value.items():
        if wrong := _text(key) or _text(text):
            return f"[{_shown(key)}]{wrong}"
    return ""


def _whole(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
        return ""
    return f" is {_shown(value)}, not a whole number from 0 to {MOST}"


def _moment(value: Any) -> str:
    if not isinstance(value, datetime):
        return f" is {_shown(value)}, not a datetime"
    return "" if value.utcoffset() is not None else " has no time zone"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return f" is {_shown(value)}, not a str"
    return "" if value.isascii() or _encodes(value) else f" is {_shown(value)}, which is not text that UTF-8 can carry"


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _handle(value: Any) -> str:
    """Part of an id: ids.join must give at most what CSI allows, whatever the instance is called."""
    if wrong := _cursor(value):
        return wrong
    return "" if value else " is empty"


def _cursor(value: Any) -> str:
    if wrong := _text(value):
        return wrong
    if len(value) > ids.MAX_HANDLE or len(value.encode()) > ids.MAX_HANDLE:
        return f" has {len(value.encode())} bytes, {ids.MAX_HANDLE} are allowed"
    if not value.isprintable() and any(ord(one) < 32 or 127 <= ord(one) < 160 for one in value):
        return f" {_shown(value)} contains a control character"
    return ""


def _matching(pattern: Any) -> Check:
    def check(value: Any) -> str:
        return _text(value) or ("" if pattern.fullmatch(value) else f" is {_shown(value)}, not of {pattern.pattern}")

    return check


def _shown(value: Any) -> str:
    """Name a value without asking it: its own repr may raise, be endless, or hold a secret."""
    if type(value) in (int, bool, type(None)):
        text = repr(value) if value is None or abs(value) <= MOST else "beyond 64 bits"
        return text if value is None else f"{type(value).__name__} {text}"
    return f"str {value[:40]!r}" if type(value) is str else f"a {type(value).__name__}"


PLAIN: dict[Any, Check] = {
    type(None): lambda value: "" if value is None else f" is {_shown(value)}, but nothing is to be returned",
    bool: _one_of(bool),
    int: _whole,
    datetime: _moment,
}
FORMS: dict[str, Check] = {
    "handle": _handle,
    "source": _handle,
    "group": _cursor,  # empty: in no group
    "cursor": _cursor,  # of a token, which has an id's form and limit
    "node_of": _matching(ids.NODE),
    "node_fact": _matching(ids.FACT),
}


def stranger(answer: Any, driver: str, cluster: str) -> str:
    """Say which resource of an answer does not carry our stamp; "" when all do."""
    paged = isinstance(answer, Page)
    for number, item in enumerate(answer.items if paged else (answer,)):
        stamp = getattr(item, "stamp", None)
        if stamp is not None and (stamp.driver != driver or stamp.cluster != cluster):
            where = f".items[{number}]" if paged else ""
            return f"{where}.stamp is of driver {stamp.driver[:63]!r} and cluster {stamp.cluster[:63]!r}: not ours"
    return ""


def _kept(question: Any, answer: Any) -> str:
    return "" if answer.stamp == question.stamp else ".stamp is not the one that was to be stored"


def _named(question: Any, answer: Any) -> str:
    return (
        "" if answer.stamp.name == question else f".stamp.name is {answer.stamp.name[:128]!r}, asked was {question!r}"
    )


def _meant(question: Any, answer: Any) -> str:
    return "" if answer.handle == question else f".handle is {answer.handle!r}, asked was {question!r}"


# What an answer owes to the first argument of its method.
OWED: dict[str, Callable[[Any, Any], str]] = {
    **dict.fromkeys(("create_volume", "restore_volume", "clone_volume"), _kept),
    **dict.fromkeys(("create_snapshot", "create_group_snapshot"), _kept),
    **dict.fromkeys(("find_volume", "find_snapshot", "find_group_snapshot"), _named),
    **dict.fromkeys(("get_volume", "get_snapshot", "get_group_snapshot"), _meant),
}
