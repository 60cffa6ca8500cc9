"""Ids and names: what they look like on the wire, parsed and made in this one place.

    volume, snapshot, group id   <instance>/<handle>            at most 128 bytes, self-sufficient
    node id                      <node>[;<instance>[+<instance>]...=<fact>]...  e.g. node-1;cloud=i-0abc
    listing token                <instance>/<cursor>

They are persistent: orchestrators store them for years, so a change of shape needs a new version
that still reads these. Version 1 has no marker; a later one starts with "~2;", which no instance and
no node name can start with.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

from .errors import FailedPrecondition, InvalidToken, NotFound
from .model import Node

MAX_ID = 128  # bytes (csi-spec 2.2)
MAX_NODE_ID = 256  # bytes
MAX_INSTANCE = 20
MAX_NODE = 63  # a topology value's limit (csi-spec 2.4)
MAX_HANDLE = MAX_ID - MAX_INSTANCE - 1
LEAF = 43  # "pvc-<uuid>" fits; with the longest instance and node an id is exactly 128 bytes

INSTANCE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,18}[a-z0-9])?")
NODE = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
FACT = re.compile(r"[-_.:A-Za-z0-9]+")
_READABLE = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_HASHED = "x-"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
LEAF_SHAPE = re.compile(rf"[a-z0-9](?:[-a-z0-9]{{0,{LEAF - 2}}}[a-z0-9])?")


def join(instance: str, handle: str) -> str:
    """Make the id of a volume, snapshot or group."""
    return f"{instance}/{handle}"


def split(kind: str, text: str) -> tuple[str, str]:
    """Return (instance, handle). An id of another shape is an unknown thing: raises NotFound."""
    instance, slash, handle = text.partition("/")
    if not slash or not handle or _CONTROL.search(handle) or not INSTANCE.fullmatch(instance):
        raise NotFound(f"{kind} {text!r} does not exist: ids of this driver are <instance>/<handle>")
    return instance, handle


def split_local(kind: str, handle: str) -> tuple[str, str]:
    """Return (node, leaf) of a node-local backend's handle `<node>/<leaf>`, the leaf made by `leaf`.

    A handle of another shape was never made by anybody: raises NotFound, so that no path is built of it.
    """
    node, _, name = handle.partition("/")
    if not NODE.fullmatch(node) or not LEAF_SHAPE.fullmatch(name):
        raise NotFound(f"{kind} {handle!r} does not exist")
    return node, name


def split_token(token: str) -> tuple[str, str]:
    """Return (instance, cursor) of a listing token. Raises InvalidToken."""
    instance, slash, cursor = token.partition("/")
    if not slash or not INSTANCE.fullmatch(instance):
        raise InvalidToken(f"starting_token {token!r} was not issued by this driver; list again from the start")
    return instance, cursor


def leaf(name: str, limit: int = LEAF) -> str:
    """Return a name made of [-a-z0-9] for a requested name: readable where it can be, else hashed.

    Deterministic, so that a retry finds its own work; injective up to a 128-bit hash, because a
    readable name that looks like a hashed one is hashed too.
    """
    if len(name) <= limit and _READABLE.fullmatch(name) and not name.startswith(_HASHED):
        return name
    digest = hashlib.sha256(name.encode()).digest()[:16]
    return _HASHED + base64.b32encode(digest).decode().rstrip("=").lower()


def join_node(name: str, facts: Mapping[str, str]) -> str:
    """Make a node id from the node's name and what each instance must know about it.

    Instances that know the same share one place. Raises FailedPrecondition when it gets too long.
    """
    sharing: dict[str, list[str]] = {}
    for instance, fact in sorted(facts.items()):
        sharing.setdefault(fact, []).append(instance)
    text = ";".join([name, *(f"{'+'.join(instances)}={fact}" for fact, instances in sharing.items())])
    if len(text.encode()) > MAX_NODE_ID:
        raise FailedPrecondition(
            f"node id {text!r} has {len(text.encode())} bytes, {MAX_NODE_ID} are allowed: give the instances "
            f"{', '.join(sorted(facts))} shorter names, or serve some of them from another driver"
        )
    return text


def split_node(text: str, instance: str) -> Node:
    """Return the node as an instance sees it. An id of another shape is unknown: raises NotFound."""
    name, *parts = text.split(";")
    facts = {one: fact for part in parts for keys, _, fact in [part.partition("=")] for one in keys.split("+")}
    if not NODE.fullmatch(name) or not all(INSTANCE.fullmatch(key) and FACT.fullmatch(facts[key]) for key in facts):
        raise NotFound(f"node {text!r} does not exist: ids of this driver's nodes start with the node's name")
    return Node(name=name, fact=facts.get(instance, ""), id=text)
