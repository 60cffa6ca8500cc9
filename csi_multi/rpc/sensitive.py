"""Finds the sensitive values of a message by the csi_secret option of its descriptor.

Mount flags may be sensitive too (csi-spec 2.2), but have no such option, so they are listed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from .._proto import csi_pb2
from ..logs.redact import MASK, written_forms

EXTRA_FIELDS = frozenset({"csi.v1.VolumeCapability.MountVolume.mount_flags"})


def values(message: Message) -> tuple[str, ...]:
    """Return the sensitive strings of a message in all written forms, longest first: one may contain another."""
    found = {form for value in _values(message) for form in written_forms(value)}
    return tuple(sorted(found, key=len, reverse=True))


def visible(message: Message) -> dict[str, Any]:
    """Return the set fields of a message for a log line, with sensitive ones masked."""
    shown: dict[str, Any] = {}
    for field, value in message.ListFields():
        shown[field.name] = MASK if is_sensitive(field) else _visible_value(field, value)
    return shown


def _visible_value(field: FieldDescriptor, value: Any) -> Any:
    if is_map(field):
        return {key: value[key] for key in value}
    if field.message_type is not None:
        return [visible(item) for item in value] if field.is_repeated else visible(value)
    return list(value) if field.is_repeated else value


def _values(message: Message) -> Iterator[str]:
    if not _may_hold_sensitive(message.DESCRIPTOR):
        return
    for field, value in message.ListFields():
        if is_sensitive(field):
            yield from (value.values() if is_map(field) else value if field.is_repeated else (value,))
        elif field.message_type is not None and not is_map(field):
            for item in value if field.is_repeated else (value,):
                yield from _values(item)


@cache
def is_sensitive(field: FieldDescriptor) -> bool:
    secret: bool = field.GetOptions().Extensions[csi_pb2.csi_secret]  # type: ignore[index]
    return secret or field.full_name in EXTRA_FIELDS


@cache
def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


@cache
def _may_hold_sensitive(descriptor: Descriptor) -> bool:
    return any(
        is_sensitive(field)
        or (field.message_type is not None and not is_map(field) and _may_hold_sensitive(field.message_type))
        for field in descriptor.fields
    )
