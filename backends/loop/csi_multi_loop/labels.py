"""Labels: the JSON file beside each image, with its owner, size and format state."""

from __future__ import annotations

import enum
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

import msgspec

from csi_multi.contract import Blank, FailedPrecondition, GroupSnapshot, Snapshot, Stamp, Volume

MEMBER_VERSION = 2  # of the label of a group's member: drivers without groups must not delete one alone

# What a field can hold; any other value is damage.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Handle = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{1,107}\Z")]
Token = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]{0,16}\Z")]
Name = Annotated[str, msgspec.Meta(pattern=r"\A[-a-z0-9]{0,43}\Z")]


class Format(enum.Enum):
    """The format state of a volume: from never used to used."""

    FRESH = "fresh"
    FORMATTING = "formatting"
    USED = "used"

    @property
    def blank(self) -> Blank:
        return {
            Format.FRESH: Blank.ZEROED,  # an image's holes read as zeros
            Format.FORMATTING: Blank.INTERRUPTED,
            Format.USED: Blank.NEVER,
        }[self]


class VolumeLabel(msgspec.Struct, frozen=True, kw_only=True):
    """volume.json. Images that share blocks through reflinks belong to one family (capacity.py).

    `id` distinguishes a volume from an earlier one of the same name; "" if it was made before volumes had one.
    """

    stamp: Stamp
    size: Number
    sector_size: Number
    format: Format
    family: str
    id: Token = ""
    version: int = 1
    latest: ClassVar[int] = 1  # version that is read

    def to_volume(self, handle: str) -> Volume:
        return Volume(handle=handle, size=self.size, stamp=self.stamp)


class SnapshotLabel(msgspec.Struct, frozen=True, kw_only=True):
    """snapshot.json. `data` is how many bytes the complete image holds on disk, `source_id` the source's id.

    `group`: the name of the group's entry, for a member.
    """

    stamp: Stamp
    source: Handle
    created: Number  # nanoseconds since 1970, UTC
    size: Number
    sector_size: Number
    data: Number
    family: str
    reflinked: bool
    source_id: Token = ""
    group: Name = ""
    version: int = 1
    latest: ClassVar[int] = MEMBER_VERSION

    def to_snapshot(self, handle: str, source: str, group: str = "") -> Snapshot:
        """`source`: the source as it is now (snapshots.source_of); `group`: the handle of its group, for a member."""
        created = _time_of(self.created)
        return Snapshot(handle=handle, source=source, size=self.size, created=created, stamp=self.stamp, group=group)


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """What a group's label holds of one member: with the group's own fields, all that is shown of it."""

    source: Handle
    source_id: Token
    size: Number


class GroupLabel(msgspec.Struct, frozen=True, kw_only=True):
    """group.json. Its members are the snapshots of the names that group_store.py gives them, by their place here."""

    stamp: Stamp
    created: Number  # nanoseconds since 1970, UTC
    members: tuple[Member, ...]
    version: int = 1
    latest: ClassVar[int] = 1

    def to_group(self, handle: str, members: tuple[Snapshot, ...]) -> GroupSnapshot:
        return GroupSnapshot(handle=handle, snapshots=members, created=_time_of(self.created), stamp=self.stamp)

    def member_stamp(self, number: int) -> Stamp:
        return replace(self.stamp, name=f"{self.stamp.name}-{number}")

    def to_snapshot(self, number: int, handle: str, source: str, group: str) -> Snapshot:
        """Return a member as its own label shows it (SnapshotLabel.to_snapshot)."""
        return Snapshot(
            handle=handle,
            source=source,
            size=self.members[number].size,
            created=_time_of(self.created),
            stamp=self.member_stamp(number),
            group=group,
        )


def _time_of(nanoseconds: int) -> datetime:
    seconds, rest = divmod(nanoseconds, 10**9)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)


Label = VolumeLabel | SnapshotLabel | GroupLabel
L = TypeVar("L", bound=Label)


class UnreadableLabel(FailedPrecondition):
    """A label is missing or damaged, so the owner of the image beside it is not known."""


class ForeignLabel(FailedPrecondition):
    """A label carries the stamp of another driver or cluster."""


def new_token() -> str:
    """Return what distinguishes a family, or a volume, from any other."""
    return secrets.token_hex(8)


def encode(label: Label) -> bytes:
    return msgspec.json.format(msgspec.json.encode(label))


def decode(file: Path, data: bytes, form: type[L]) -> L:
    """Return the label that a file holds. Raises UnreadableLabel."""
    try:
        label = msgspec.json.decode(data, type=form)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableLabel(
            f"label {file} is damaged: {error}; restore it from a backup, or move {file.parent} away"
        ) from None
    if label.version > form.latest:
        raise UnreadableLabel(
            f"label {file} has version {label.version}, and this driver reads versions up to {form.latest}; upgrade "
            "the driver"
        )
    return label
