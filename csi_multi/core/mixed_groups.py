"""Groups of snapshots that the driver cuts itself: their ids, and the names and notes of their snapshots.

    group id    ~<instance>/<node>/<key>    of its first member; no instance begins with "~"
    member      <key>-<number>              the requested name of its snapshot; the members are numbered by volume id
    mark        <key>-pending               a snapshot that exists until the group is complete

All of it follows from the requested name and the volumes, and the stamp of each snapshot notes the group and where all
members are. So nothing else has to be remembered.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ..contract import ids
from ..contract.errors import InvalidArgument, NotFound

GROUP, MEMBERS, CONSISTENCY = "group", "groupMembers", "groupConsistency"  # notes in the context of a stamp
BEST_EFFORT = "best-effort"
PENDING = "pending"
MAX_NOTE = 1024  # bytes; a stamp has 2 KiB, with the names and ids in it
_MARK = "~"
_KEY = re.compile(r"group-[a-z2-7]{26}")
_NAME = re.compile(rf"{_KEY.pattern}-(?:[0-9]+|{PENDING})")
_PLACE = re.compile(r"(?P<instance>[^/=,]+)/(?P<node>[^/=,]+)=(?P<count>[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member is: its instance, and the node of its volume."""

    instance: str
    node: str


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """A group: the key of its names, and the places of its members, in the order of their numbers."""

    key: str
    places: tuple[MemberPlace, ...]

    @property
    def id(self) -> str:
        return f"{_MARK}{self.places[0].instance}/{self.places[0].node}/{self.key}"

    @property
    def mark(self) -> str:
        return f"{self.key}-{PENDING}"

    def member(self, number: int) -> str:
        return f"{self.key}-{number}"

    def notes(self) -> dict[str, str]:
        """Return what the stamp of every snapshot of the group notes. Raises InvalidArgument when it is too long."""
        runs = [(place, len([*same])) for place, same in groupby(self.places)]
        members = ",".join(f"{place.instance}/{place.node}={count}" for place, count in runs)
        if len(members) > MAX_NOTE:
            raise InvalidArgument(
                f"source_volume_ids: the volumes are in {len(runs)} places (backends and nodes), which is too many to "
                f"note on each snapshot ({len(members)} bytes, at most {MAX_NOTE}); make several groups"
            )
        return {GROUP: self.id, MEMBERS: members}


def key_of(name: str) -> str:
    """Return what the names of a group's snapshots begin with."""
    digest = hashlib.sha256(name.encode()).digest()[:16]
    return "group-" + base64.b32encode(digest).decode().rstrip("=").lower()


def is_mixed(group_id: str) -> bool:
    """Whether an id is one of a group that the driver cut itself."""
    return group_id.startswith(_MARK)


def parse(group_id: str) -> tuple[MemberPlace, str]:
    """Return the place of the first member, and the key. Raises NotFound for an id of another form."""
    instance, _, rest = group_id.removeprefix(_MARK).partition("/")
    node, _, key = rest.partition("/")
    if not (
        is_mixed(group_id) and ids.INSTANCE.fullmatch(instance) and ids.NODE.fullmatch(node) and _KEY.fullmatch(key)
    ):
        raise NotFound(f"group snapshot {group_id!r} does not exist")
    return MemberPlace(instance, node), key


def group_of(context: Mapping[str, str]) -> str:
    """Return the id of the group that a snapshot's stamp notes, "" for none."""
    return context.get(GROUP, "")


def noted(key: str, context: Mapping[str, str]) -> MixedGroup | None:
    """Return the group as a snapshot's stamp notes it, None where it notes none that can be read."""
    places: list[MemberPlace] = []
    for run in context.get(MEMBERS, "").split(","):
        found = _PLACE.fullmatch(run)
        if not found:
            return None
        places += [MemberPlace(found["instance"], found["node"])] * int(found["count"])
    group = MixedGroup(key, tuple(places))
    return group if group.id == group_of(context) else None


def may_be_member(handle: str) -> bool:
    """Whether a snapshot's handle may be one of a group: it ends with the requested name (see require_named)."""
    return _NAME.fullmatch(handle.rpartition("/")[2]) is not None


def is_named(handle: str, name: str) -> bool:
    """Whether a handle ends with the requested name, by which a member is recognised before it is deleted alone."""
    return handle.rpartition("/")[2] == name


def in_order(volumes: Sequence[str]) -> list[str]:
    """Return volume ids in the order in which the members are numbered."""
    return sorted(volumes)
