"""The tags that users may set: the rules for keys and values, and templates in values.

EC2 itself accepts any character in a tag. The set here is what all of AWS allows, so that a tag can also be used in
policies, cost reports and tag editors.

A template names the claim that a volume is for: `{{ .PVCNamespace | field "-" 1 | toUpper }}`. The form is that of
Go's text/template, as users of aws-ebs-csi-driver write it: a name or a text, piped through functions that get it as
their last argument. Conditions, loops, variables, parentheses and Go's own functions are not supported, so that a
value is easy to check and its computation always ends.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import NoReturn

from csi_multi.contract import InvalidArgument

MAX_TAGS = 50  # tags per resource
MAX_KEY = 128  # characters
MAX_VALUE = 256  # characters

PREFIX = "csi-multi/"
IOPS_PER_GB = f"{PREFIX}iops-per-gb"  # the ratio to keep when the volume grows
VOLUME_NAME = "CSIVolumeName"
SNAPSHOT_NAME = "CSIVolumeSnapshotName"
CREATED_FOR = "kubernetes.io/created-for/"
CLUSTER = "kubernetes.io/cluster/"
AWS = "aws:"

_DRIVER_PREFIXES = (PREFIX, CREATED_FOR, CLUSTER)
_PUNCTUATION = frozenset(" _.:/=+-@")

# The names in a template, and the keys under which the sidecars send their values.
VOLUME_TEMPLATE_NAMES = {"PVCName": "pvc/name", "PVCNamespace": "pvc/namespace", "PVName": "pv/name"}
SNAPSHOT_TEMPLATE_NAMES = {
    "VolumeSnapshotName": "volumesnapshot/name",
    "VolumeSnapshotNamespace": "volumesnapshot/namespace",
    "VolumeSnapshotContentName": "volumesnapshotcontent/name",
}

Value = str | int

_TEXT = r'"(?:[^"\\\n]|\\.)*"|`[^`]*`'
_ACTION = re.compile(rf"\{{\{{((?:{_TEXT}|[^\"`{{}}])*)\}}\}}")
_WORD = re.compile(rf"\s*({_TEXT}|-?[0-9]+(?=[\s|]|$)|\.?[A-Za-z]\w*(?=[\s|]|$)|\|)", re.ASCII)


def tag_problem(key: str, value: str = "") -> str:
    """Return why a user cannot set this tag; "" when it is allowed."""
    if not key:
        return "the key of a tag is empty; give it one"
    if key in (VOLUME_NAME, SNAPSHOT_NAME) or key.startswith(_DRIVER_PREFIXES):
        return f"tag {key!r} is reserved for the driver; choose another key"
    if key.lower().startswith(AWS):
        return f"tag {key!r}: keys that begin with {AWS!r} are reserved for AWS; choose another key"
    if len(key) > MAX_KEY:
        return f"tag {key!r}: a key has at most {MAX_KEY} characters, not {len(key)}"
    if len(value) > MAX_VALUE:
        return f"tag {key!r}: a value has at most {MAX_VALUE} characters, not {len(value)}"
    if bad := sorted({char for char in key + value if not _allowed(char)}):
        return f"tag {key!r}: {bad[0]!r} is not allowed; use letters, digits, spaces and _ . : / = + - @"
    return ""


def fit_value(text: str) -> str:
    """Return the text as a value that AWS accepts: truncated, with "_" for each character that is not allowed."""
    value = "".join(char if _allowed(char) else "_" for char in text[:MAX_VALUE]).strip()
    return "_" + value[1:] if value.lower().startswith(AWS) else value


def _allowed(char: str) -> bool:
    """Characters beyond the Basic Multilingual Plane may count as two, so they are not allowed."""
    return char in _PUNCTUATION or (char <= "\uffff" and unicodedata.category(char)[0] in "LN")


def render_template(text: str, names: Mapping[str, str], metadata: Mapping[str, str]) -> str:
    """Return the text with each {{ … }} replaced. Raises InvalidArgument.

    `names` maps the names that a template may use to keys of `metadata`, which has their values.
    """
    parts, end = [], 0
    for action in _ACTION.finditer(text):
        parts += [text[end : action.start()], str(_pipeline(action, names, metadata))]
        end = action.end()
    parts.append(text[end:])
    if any("{{" in part for part in parts[::2]):
        _refuse(text, "write an action as {{ … }}; close every quote, and use braces only inside quotes")
    return "".join(parts)


def _pipeline(action: re.Match[str], names: Mapping[str, str], metadata: Mapping[str, str]) -> Value:
    commands: list[list[str]] = [[]]
    for word in _words(action):
        if word == "|":
            commands.append([])
        else:
            commands[-1].append(word)
    if not all(commands):
        _refuse(action[0], "a function is missing next to a '|', or between the braces")
    value: Value = ""
    for number, (first, *rest) in enumerate(commands):
        if not rest and not number:
            value = _literal(first, names, metadata)
            continue
        if first not in FUNCTIONS:
            _refuse(action[0], f"function {first!r} does not exist; functions: {', '.join(FUNCTIONS)}")
        given = [_literal(word, names, metadata) for word in rest]
        value = _call(action[0], first, given + [value] * (number > 0))
    return value


def _words(action: re.Match[str]) -> list[str]:
    body, words, at = action[1].rstrip(), [], 0
    while at < len(body):
        found = _WORD.match(body, at)
        if not found:
            _refuse(action[0], f"{body[at:].strip()!r} cannot be read; use names, quoted texts, numbers and functions")
        words.append(found[1])
        at = found.end()
    return words


def _literal(word: str, names: Mapping[str, str], metadata: Mapping[str, str]) -> Value:
    """Return the value of a name, a quoted text or a number."""
    if word.startswith("."):
        return _metadata_value(word, names, metadata)
    if word.startswith("`"):
        return word[1:-1]
    if word.startswith('"'):
        try:
            return str(json.loads(word))
        except ValueError:
            _refuse(word, "the quoted text has an unknown escape; use those of JSON")
    if not word.lstrip("-").isdecimal():
        _refuse(word, f"expected a name, a quoted text or a number; names: {_listed(names)}")
    return int(word)


def _metadata_value(word: str, names: Mapping[str, str], metadata: Mapping[str, str]) -> str:
    key = names.get(word[1:])
    if key is None:
        _refuse(word, f"this name does not exist here; names: {_listed(names)}")
    if key not in metadata:
        _refuse(word, "the sidecar did not send it; start the provisioner or snapshotter with --extra-create-metadata")
    return metadata[key]


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(f".{name}" for name in names)


def _call(action: str, name: str, given: list[Value]) -> Value:
    takes, function = FUNCTIONS[name]
    if [type(one) for one in given] != list(takes):
        words = ", ".join("a text" if kind is str else "a number" for kind in takes)
        _refuse(action, f"{name} takes {words}; the last argument comes from the pipe")
    try:
        return function(*given)
    except IndexError:
        _refuse(action, f"{name} reads past the end of {given[-1]!r}")


def _field(delimiter: str, index: int, text: str) -> str:
    """Return one part of a text, counted from 0."""
    parts = text.split(delimiter) if delimiter else list(text)
    if index < 0:
        raise IndexError(index)
    return parts[index]


def _substring(start: int, end: int, text: str) -> str:
    """Return the characters from start to end. A negative start means the beginning, a negative end the end."""
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
