"""Checks requests and responses against the rules for every CSI message (csi-spec 2.2 to 2.4).

The descriptors decide what is checked, so a new field of the proto is checked without new code. Rules that
depend on the state of a volume are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from ..contract.errors import InvalidArgument, OutOfRange
from .rules import RpcRule
from .sensitive import is_map, is_sensitive

TEXT_LIMIT = 128  # bytes
MAP_LIMIT = 4096  # bytes, keys and values together
PATH_LIMIT = 4095  # bytes, the limit of Linux
TEXT_LIMITS = {"node_id": 256, "published_node_ids": 256}
EXPLANATION = "message"  # the field of responses with a text for people, which is cut to its limit instead of refused
CUT = "..."
PATH_FIELDS = frozenset({"staging_target_path", "target_path", "volume_path", "volume_publish_path"})
RELATIVE_PATH_FIELDS = frozenset({"volume_path", "volume_publish_path"})  # csi-sanity sends relative ones
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
SECRET_KEY = re.compile(r"[-_.A-Za-z0-9]+")
SEGMENT_NAME = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
SEGMENT_PREFIX = re.compile(r"(?=.{1,63}$)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
NUMBER_TYPES = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64)


def request(message: Message, rule: RpcRule) -> None:
    """Raise InvalidArgument for the first rule that a request breaks."""
    for name in rule.required:
        if not _is_set(message, name):
            raise InvalidArgument(f"{name} is required")
    fields(message)


def response(message: Message) -> list[str]:
    """Cut the texts for people, raise for anything else that is out of bounds; return the complete texts."""
    complete = list(_cut_explanations(message))
    fields(message)
    return complete


def _cut_explanations(message: Message) -> Iterator[str]:
    if not _may_explain(message.DESCRIPTOR):
        return
    for field, value in message.ListFields():
        if field.name == EXPLANATION and len(value.encode()) > TEXT_LIMIT:
            setattr(message, EXPLANATION, value.encode()[: TEXT_LIMIT - len(CUT)].decode(errors="ignore") + CUT)
            yield value
        elif field.message_type is not None and not is_map(field):
            for item in value if field.is_repeated else (value,):
                yield from _cut_explanations(item)


@cache
def _may_explain(descriptor: Descriptor) -> bool:
    return any(
        field.name == EXPLANATION
        or (field.message_type is not None and not is_map(field) and _may_explain(field.message_type))
        for field in descriptor.fields
    )


def fields(message: Message, path: str = "") -> None:
    """Raise InvalidArgument (OutOfRange for an offset) for the first field, at any depth, that is out of bounds."""
    if not _has_bounds(message.DESCRIPTOR):
        return
    for field, value in message.ListFields():
        where = f"{path}{field.name}"
        _check(field, value, where)
        special = MESSAGE_CHECKS.get(field.message_type.full_name) if field.message_type else None
        for item in () if field.message_type is None or is_map(field) else value if field.is_repeated else (value,):
            fields(item, f"{where}.")
            if special:
                special(item, where)


@cache
def _has_bounds(descriptor: Descriptor) -> bool:
    """Whether any rule below applies to a message of this type; Probe and capabilities have none."""
    return descriptor.full_name in MESSAGE_CHECKS or any(
        is_map(field)
        or field.type in (FieldDescriptor.TYPE_STRING, *NUMBER_TYPES)
        or (field.message_type is not None and _has_bounds(field.message_type))
        for field in descriptor.fields
    )


def _is_set(message: Any, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        return len(getattr(message, name)) > 0
    return message.HasField(name) if field.message_type else bool(getattr(message, name))


def _check(field: FieldDescriptor, value: Any, where: str) -> None:
    if is_map(field):
        _check_map(field, value, where)
    elif field.type == FieldDescriptor.TYPE_STRING:
        texts = list(value) if field.is_repeated else [value]
        if field.name == "mount_flags":
            _limit(where, sum(len(text.encode()) for text in texts), MAP_LIMIT)
            if any("\x00" in text or "\n" in text for text in texts):
                raise InvalidArgument(f"{where}: a flag contains NUL or a line break")
            return
        for text in texts:
            _check_text(field.name, text, where)
    elif field.type in NUMBER_TYPES and not field.is_repeated and value < 0:
        kind = OutOfRange if field.name == "starting_offset" else InvalidArgument  # csi-spec 3, SnapshotMetadata
        raise kind(f"{where} is {value}; it must not be negative")


def _check_text(name: str, text: str, where: str) -> None:
    if name in PATH_FIELDS:
        _check_path(name, text, where)
        return
    _limit(where, len(text.encode()), TEXT_LIMITS.get(name, TEXT_LIMIT))
    if name == "name" and (found := CONTROL_CHARACTERS.search(text)):
        raise InvalidArgument(
            f"{where} contains the control character U+{ord(found[0]):04X}, which is not allowed in CSI names"
        )


def _check_path(name: str, text: str, where: str) -> None:
    _limit(where, len(text.encode()), PATH_LIMIT)
    if "\x00" in text:
        raise InvalidArgument(f"{where} contains NUL")
    parts = PurePosixPath(text).parts
    if ".." in parts or any(len(part.encode()) > 255 for part in parts):
        raise InvalidArgument(f"{where}: a component is '..' or longer than 255 bytes")
    if not text.startswith("/") and name not in RELATIVE_PATH_FIELDS:
        raise InvalidArgument(f"{where} {text!r} must be an absolute path")


def _check_map(field: FieldDescriptor, value: Any, where: str) -> None:
    if field.message_type is None or field.message_type.fields_by_name["value"].type != FieldDescriptor.TYPE_STRING:
        return
    _limit(where, sum(len(key.encode()) + len(value[key].encode()) for key in value), MAP_LIMIT)
    if is_sensitive(field) and not all(map(SECRET_KEY.fullmatch, value)):
        # The key is not shown, because it may be the secret itself.
        raise InvalidArgument(f"{where}: a key may have only letters, digits, '-', '_' and '.'")


def _limit(where: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidArgument(f"{where} has {size} bytes; at most {limit} are allowed")


def _capability(item: Any, where: str) -> None:
    if not item.WhichOneof("access_type"):
        raise InvalidArgument(f"{where}: access_type is required: block or mount")
    if not item.HasField("access_mode") or item.access_mode.mode == 0:
        raise InvalidArgument(f"{where}: access_mode is required")


def _range(item: Any, where: str) -> None:
    if not item.required_bytes and not item.limit_bytes:
        raise InvalidArgument(f"{where}: required_bytes or limit_bytes must be set")
    if item.limit_bytes and item.limit_bytes < item.required_bytes:
        raise InvalidArgument(f"{where}: limit_bytes {item.limit_bytes} is below required_bytes {item.required_bytes}")


def _source(item: Any, where: str) -> None:
    kind = item.WhichOneof("type")
    if not kind or not (item.snapshot.snapshot_id or item.volume.volume_id):
        raise InvalidArgument(f"{where}: a snapshot_id or a volume_id is required")


def _topology(item: Any, where: str) -> None:
    keys: set[str] = set()
    for key, value in item.segments.items():
        prefix, slash, name = key.rpartition("/")
        if not SEGMENT_NAME.fullmatch(name) or (slash and not SEGMENT_PREFIX.fullmatch(prefix)):
            raise InvalidArgument(f"{where}: {key!r} is not a topology key: [prefix/]name, each up to 63 characters")
        if not SEGMENT_NAME.fullmatch(value):
            raise InvalidArgument(f"{where}: {value!r} is not a topology value: 1 to 63 of letters, digits, '-_.'")
        if key.lower() in keys:
            raise InvalidArgument(f"{where}: key {key!r} differs from another only in case")
        keys.add(key.lower())


def _requirement(item: Any, where: str) -> None:
    if not item.requisite and not item.preferred:
        raise InvalidArgument(f"{where}: requisite or preferred must hold a topology")


MESSAGE_CHECKS = {
    "csi.v1.VolumeCapability": _capability,
    "csi.v1.CapacityRange": _range,
    "csi.v1.VolumeContentSource": _source,
    "csi.v1.Topology": _topology,
    "csi.v1.TopologyRequirement": _requirement,
}
