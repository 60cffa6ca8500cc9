"""Tag values that name the claim a volume is for: `{{ .PVCNamespace | field "-" 1 | toUpper }}`.

The form is that of Go's text/template, as users of aws-ebs-csi-driver write it: a name or a text, piped
through functions that get it as their last argument. Conditions, loops, variables, parentheses and Go's own
functions are not here: a value stays one that is checked at a glance and computed in no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from csi_multi.contract import InvalidArgument

# What a template calls it, and what the orchestrator's sidecars call it.
OF_VOLUME = {"PVCName": "pvc/name", "PVCNamespace": "pvc/namespace", "PVName": "pv/name"}
OF_SNAPSHOT = {
    "VolumeSnapshotName": "volumesnapshot/name",
    "VolumeSnapshotNamespace": "volumesnapshot/namespace",
    "VolumeSnapshotContentName": "volumesnapshotcontent/name",
}

Value = str | int

_TEXT = r'"(?:[^"\\\n]|\\.)*"|`[^`]*`'
_ACTION = re.compile(rf"\{{\{{((?:{_TEXT}|[^\"`{{}}])*)\}}\}}")
_WORD = re.compile(rf"\s*({_TEXT}|-?[0-9]+(?=[\s|]|$)|\.?[A-Za-z]\w*(?=[\s|]|$)|\|)", re.ASCII)


def render(text: str, names: Mapping[str, str], facts: Mapping[str, str]) -> str:
    """Return the text with each {{ … }} replaced. Raises InvalidArgument.

    `names` says which names a template may use, `facts` what they stand for.
    """
    parts, end = [], 0
    for action in _ACTION.finditer(text):
        parts += [text[end : action.start()], str(_pipeline(action, names, facts))]
        end = action.end()
    parts.append(text[end:])
    if any("{{" in part for part in parts[::2]):
        _refuse(text, "an action is {{ … }}, with quotes that are closed and no braces outside of them")
    return "".join(parts)


def _pipeline(action: re.Match[str], names: Mapping[str, str], facts: Mapping[str, str]) -> Value:
    commands: list[list[str]] = [[]]
    for word in _words(action):
        if word == "|":
            commands.append([])
        else:
            commands[-1].append(word)
    if not all(commands):
        _refuse(action[0], "something is missing beside a '|', or between the braces")
    value: Value = ""
    for number, (first, *rest) in enumerate(commands):
        if not rest and not number:
            value = _literal(first, names, facts)
            continue
        if first not in FUNCTIONS:
            _refuse(action[0], f"there is no function {first!r}; functions: {', '.join(FUNCTIONS)}")
        given = [_literal(word, names, facts) for word in rest]
        value = _call(action[0], first, given + [value] * (number > 0))
    return value


def _words(action: re.Match[str]) -> list[str]:
    body, words, at = action[1].rstrip(), [], 0
    while at < len(body):
        found = _WORD.match(body, at)
        if not found:
            _refuse(action[0], f"{body[at:].strip()!r} is not understood; it takes names, texts, numbers, functions")
        words.append(found[1])
        at = found.end()
    return words


def _literal(word: str, names: Mapping[str, str], facts: Mapping[str, str]) -> Value:
    """Return what a name, a text in quotes or a number stands for."""
    if word.startswith("."):
        return _fact(word, names, facts)
    if word.startswith("`"):
        return word[1:-1]
    if word.startswith('"'):
        try:
            return str(json.loads(word))
        except ValueError:
            _refuse(word, "the text has an unknown escape")
    if not word.lstrip("-").isdecimal():
        _refuse(word, f"here only names, texts and numbers have a meaning; names: {_known(names)}")
    return int(word)


def _fact(word: str, names: Mapping[str, str], facts: Mapping[str, str]) -> str:
    key = names.get(word[1:])
    if key is None:
        _refuse(word, f"there is no such name here; names: {_known(names)}")
    if key not in facts:
        _refuse(word, "it was not said; start the sidecar (provisioner or snapshotter) with --extra-create-metadata")
    return facts[key]


def _known(names: Mapping[str, str]) -> str:
    return ", ".join(f".{name}" for name in names)


def _call(action: str, name: str, given: list[Value]) -> Value:
    takes, function = FUNCTIONS[name]
    if [type(one) for one in given] != list(takes):
        words = ", ".join("a text" if kind is str else "a number" for kind in takes)
        _refuse(action, f"{name} takes {words}, the last one from the pipe")
    try:
        return function(*given)
    except IndexError:
        _refuse(action, f"{name} asks for more than {given[-1]!r} has")


def _field(delimiter: str, index: int, text: str) -> str:
    """Return one of the parts of a text, counted from 0."""
    parts = text.split(delimiter) if delimiter else list(text)
    if index < 0:
        raise IndexError(index)
    return parts[index]


def _substring(start: int, end: int, text: str) -> str:
    """Return the characters from start up to end. Negative: from the beginning, to the end."""
    return text[max(start, 0) : None if end < 0 else end]


def _contains(part: str, text: str) -> str:
    return "true" if part in text else "false"


def _refuse(what: str, reason: str) -> NoReturn:
    raise InvalidArgument(f"template {what!r}: {reason}")


FUNCTIONS: dict[str, tuple[tuple[type, ...], Callable[..., str]]] = {
    "field": ((str, int, str), _field),
    "substring": ((int, int, str), _substring),
    "toUpper": ((str,), str.upper),
    "toLower": ((str,), str.lower),
    "contains": ((str, str), _contains),
}
