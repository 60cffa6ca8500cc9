"""Typed schemas for all user input: configuration and class parameters.

A schema is a frozen msgspec struct; its fields carry types, defaults, bounds and descriptions:

    class Parameters(Schema, frozen=True):
        sector_size: Annotated[Literal[512, 4096], Doc("bytes per sector")] = 512

Names are snake_case in the YAML file and camelCase in class parameters. A field of type
dict[str, str] marked with Keys("tagSpecification_\\d+") collects all keys that match the pattern. A schema of class
parameters with `loose: ClassVar[bool] = True` ignores the case of keys and treats an empty value as unset, for
backends whose users bring classes from a driver that does so.

A key that a VolumeAttributesClass leaves out stays as it is on the volume. A field of MutableParameters that can go
back to its default is `iops: Annotated[int, Doc("...")] | Reset | None = None`: the user writes "default", and the
backend gets RESET. That is the storage's default, not the StorageClass's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec
from msgspec import Meta
from msgspec.inspect import Field, LiteralType, Metadata, Type, UnionType, type_info

from .errors import InvalidArgument

S = TypeVar("S", bound="Schema")

Reset = Literal["default"]  # the type of RESET
RESET: Final = "default"  # the value of a mutable parameter that gets the storage's default again

# Words in capitals, as in the drivers whose StorageClasses work here unchanged.
ABBREVIATIONS = frozenset({"gb", "iops"})


class Schema(msgspec.Struct, frozen=True):
    """Base of all schemas; the base itself has no fields."""

    loose: ClassVar[bool] = False  # class parameters: the case of keys is ignored, and an empty value is unset


def Doc(description: str, **rules: Any) -> Meta:  # noqa: N802 - reads as an annotation
    """Describe a field; `rules` are msgspec.Meta bounds such as ge=, le=, pattern=."""
    return Meta(description=description, **rules)


def Keys(pattern: str, description: str) -> Meta:  # noqa: N802
    """Mark a dict[str, str] field that collects all keys that match the pattern."""
    return Meta(description=description, extra={"keys": pattern})


@cache
def camel(name: str) -> str:
    """Return the class parameter of a field: sector_size -> sectorSize, iops_per_gb -> iopsPerGB."""
    head, *rest = name.split("_")
    return head + "".join(word.upper() if word in ABBREVIATIONS else word.capitalize() for word in rest)


def parse(schema: type[S], values: Mapping[str, str], where: str, also: Iterable[str] = ()) -> S:
    """Convert class parameters to the schema. Raises InvalidArgument with key, rule and remedy.

    `also` are further valid keys, for the hint about an unknown one.
    """
    names = {camel(field.name): field for field in fields(schema)}
    patterns = {field.name: pattern for field in fields(schema) if (pattern := keys_of(field))}
    values = normalize_keys(schema, values, where)
    known: dict[str, Any] = {}
    for key, value in values.items():
        if key in names and not keys_of(names[key]):
            known[names[key].name] = value
        elif collector := next((name for name, pattern in patterns.items() if re.fullmatch(pattern, key)), None):
            known.setdefault(collector, {})[key] = value
        else:
            valid = [name for name, field in names.items() if not keys_of(field)]
            raise InvalidArgument(unknown(where, key, [*valid, *patterns.values(), *also]))
    try:
        return msgspec.convert(known, schema, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(explain(error, where, schema, camel)) from None


def normalize_keys(schema: type[S], values: Mapping[str, str], where: str, also: Iterable[str] = ()) -> dict[str, str]:
    """Return class parameters with the keys of a loose schema as documented, so that equal parameters compare equal.

    `also` are further valid keys. An unknown key stays unchanged. Raises InvalidArgument for a key that
    is set twice.
    """
    if not schema.loose:
        return dict(values)
    patterns = [pattern for field in fields(schema) if (pattern := keys_of(field))]
    names = [camel(field.name) for field in fields(schema) if not keys_of(field)] + list(also)
    known = {name.lower(): name for name in names}
    origin: dict[str, str] = {}  # documented key -> key as it was given
    for key in values:
        one = known.get(key.lower()) or next((_normalize_key(one, key) for one in patterns if _matches(one, key)), key)
        if origin.setdefault(one, key) != key:
            raise duplicate_key(where, origin[one], key, "case is ignored; remove one of them")
    return {one: values[key] for one, key in origin.items() if values[key] or one not in names}


def duplicate_key(where: str, one: str, other: str, advice: str) -> InvalidArgument:
    """Return the error for two keys of class parameters with one meaning; `advice` says why, and which to keep."""
    return InvalidArgument(f"{where}: {one!r} and {other!r} mean the same; {advice}")


def _matches(pattern: str, key: str) -> bool:
    return re.fullmatch(pattern, key, re.IGNORECASE) is not None


def _normalize_key(pattern: str, key: str) -> str:
    """Return a matching key with the pattern's case, as far as the pattern begins with plain letters."""
    words = re.findall("[A-Za-z]+", re.sub(r"\\.", " ", pattern))
    head = next((word for word in words if key.lower().startswith(word.lower())), "")
    return head + key[len(head) :].lower()


def unknown(where: str, key: str, valid: Iterable[str], noun: str = "key") -> str:
    """Return the error text for an unknown key, with the most similar valid one."""
    names = sorted(valid)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"valid {noun}s: {', '.join(names) or 'none'}"
    return f"{where}: unknown {noun} {key!r}; {hint}"


def explain(
    error: msgspec.ValidationError, where: str, schema: type[Schema], rename: Callable[[str], str] = str
) -> str:
    """Return msgspec's message with the key first, then the rule, then the valid values."""
    text, _, path = str(error).partition(" - at `$.")
    key = path.rstrip("`")
    if not key and (absent := re.fullmatch(r"Object missing required field `(.+)`", text)):
        return f"{where}: {rename(absent[1])!r} is required"
    if not key:
        return f"{where}: {text}"
    takes = next((f"; it takes: {kind}" for name, kind, *_ in describe(schema) if name == key), "")
    return f"{where}: {rename(key)!r}: {text[:1].lower()}{text[1:]}{takes}"


@cache
def fields(schema: type[Schema]) -> tuple[Field, ...]:
    """Return the fields of a schema in order, with resolved types; cached, because resolving takes 0.3 ms."""
    info = type_info(schema)
    return info.fields  # type: ignore[attr-defined,no-any-return]


def keys_of(field: Field) -> str:
    """Return the pattern of a Keys field, else ""."""
    kind = field.type
    return str((kind.extra or {}).get("keys", "")) if isinstance(kind, Metadata) else ""


def resettable(schema: type[Schema]) -> list[str]:
    """Return the names of the fields that can be RESET."""
    return [one.name for one in fields(schema) if LiteralType((RESET,)) in _options(one.type)]


def _options(kind: Type) -> tuple[Type, ...]:
    """Return what a field may be, also where its rules stand around the whole union."""
    if isinstance(kind, Metadata):
        return _options(kind.type)
    return kind.types if isinstance(kind, UnionType) else (kind,)


def describe(schema: type[Schema]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, type, default, description) of each field, for the generated documentation."""
    properties = msgspec.json.schema(schema)["$defs"][schema.__name__]["properties"]
    for field in fields(schema):
        facts = properties[field.encode_name]
        text = next((one["description"] for one in (facts, *facts.get("anyOf", ())) if "description" in one), "")
        yield field.name, _type(facts), "required" if field.required else _default(facts), text


def _default(facts: Mapping[str, Any]) -> str:
    value = facts.get("default")
    return "" if value in (None, "", {}, []) else str(value).lower() if isinstance(value, bool) else str(value)


def _type(facts: Mapping[str, Any]) -> str:
    if "enum" in facts:
        return ", ".join(str(value) for value in facts["enum"])
    if "anyOf" in facts:
        return " or ".join(_type(option) for option in facts["anyOf"] if option.get("type") != "null")
    bounds = [f"≥ {facts['minimum']}"] if "minimum" in facts else []
    bounds += [f"≤ {facts['maximum']}"] if "maximum" in facts else []
    return " ".join([str(facts.get("type", "any")), *bounds])
