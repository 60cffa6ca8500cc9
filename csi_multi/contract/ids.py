"""Ids and names in CSI messages, parsed and created only here.

    volume, snapshot, group id   <instance>/<handle>            at most 128 bytes; no other state is needed
    node id                      <node>[;<instance>[+<instance>]...=<fact>]...  e.g. node-1;cloud=i-0abc
    listing token                <instance>/<cursor>

Orchestrators store them for years, so another format needs a new version that still reads this
one. Version 1 has no marker; a later one starts with "~2;", which no instance and no node name
can start with.
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
EARLIER_DIGEST = 10  # bytes, 16 characters
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
LEAF_SHAPE = re.compile(rf"[a-z0-9](?:[-a-z0-9]{{0,{LEAF - 2}}}[a-z0-9])?")


def join(instance: str, handle: str) -> str:
    """Return the id of a volume, snapshot or group."""
    return f"{instance}/{handle}"


def split(kind: str, text: str) -> tuple[str, str]:
    """Return (instance, handle). Raises NotFound for an id of another form."""
    instance, slash, handle = text.partition("/")
    if not slash or not handle or _CONTROL.search(handle) or not INSTANCE.fullmatch(instance):
        raise NotFound(f"{kind} {text!r} does not exist; ids of this driver have the form <instance>/<handle>")
    return instance, handle


def split_local(kind: str, handle: str) -> tuple[str, str]:
    """Return (node, leaf) of a node-local backend's handle `<node>/<leaf>`, whose leaf comes from `leaf`.

    Raises NotFound for a handle of another form, so that no path is built from it.
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
    """Return a name of [-a-z0-9] for a requested name: unchanged where possible, else its hash.

    It is deterministic, so that a retry finds the resource of the first try, and unique up to a 128-bit hash. A hash
    begins with "x-" and has no other hyphen; a name that begins so is hashed too.
    """
    if len(name) <= limit and _READABLE.fullmatch(name) and not name.startswith(_HASHED):
        return name
    digest = hashlib.sha256(name.encode()).digest()[:16]
    return _HASHED + base64.b32encode(digest).decode().rstrip("=").lower()


def earlier(handle: str, identity: str) -> str:
    """Return what names a deleted volume as the source of its snapshots, once another volume has its handle.

    `identity` distinguishes it from other volumes that had the handle. The result has the form of a handle of the same
    place, and no volume ever has it: `leaf` returns nothing else that begins with "x-" but hashes without a hyphen.
    """
    place, slash, name = handle.rpartition("/")
    limit = min(LEAF, MAX_HANDLE - len(place) - len(slash))
    digest = hashlib.sha256(f"{handle}@{identity}".encode()).digest()[:EARLIER_DIGEST]
    ending = "-" + base64.b32encode(digest).decode().rstrip("=").lower()
    return place + slash + (_HASHED + name[: max(limit - len(_HASHED) - len(ending), 0)] + ending)[:limit]


def join_node(name: str, facts: Mapping[str, str]) -> str:
    """Return a node id of the node's name and the facts that instances need about it.

    Instances with the same fact share one entry. Raises FailedPrecondition when the id is too long.
    """
    sharing: dict[str, list[str]] = {}
    for instance, fact in sorted(facts.items()):
        sharing.setdefault(fact, []).append(instance)
    text = ";".join([name, *(f"{'+'.join(instances)}={fact}" for fact, instances in sharing.items())])
    if len(text.encode()) > MAX_NODE_ID:
        raise FailedPrecondition(
            f"node id {text!r} has {len(text.encode())} bytes; at most {MAX_NODE_ID} are allowed; give the instances "
            f"{', '.join(sorted(facts))} shorter names, or serve some of them with another driver"
        )
    return text


def split_node(text: str, instance: str) -> Node:
    """Return the node with the fact of one instance. Raises NotFound for an id of another form."""
    name, *parts = text.split(";")
    facts = {one: fact for part in parts for keys, _, fact in [part.partition("=")] for one in keys.split("+")}
    if not NODE.fullmatch(name) or not all(INSTANCE.fullmatch(key) and FACT.fullmatch(facts[key]) for key in facts):
        raise NotFound(f"node {text!r} does not exist; node ids of this driver start with the node's name")
    return Node(name=name, fact=facts.get(instance, ""), id=text)
