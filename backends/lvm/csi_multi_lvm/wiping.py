"""Old tenants' data in the space of a thick volume: neither formatted over blindly nor readable.

A new thick volume holds what was there before. Before its first use either all of it is zeroed, or, when a
filesystem will hide it, only its ends, where signatures are. How far that has come stands in its tags, so
that it goes on after a crash, and is never done to a volume that somebody has used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from csi_multi.contract import Blank, Busy, FailedPrecondition

from . import contents, tags
from .lvm import Lvm
from .report import LogicalVolume

UNUSED = (tags.NEW, tags.FRESH)

Look = Callable[[], LogicalVolume]


def at_creation(wipe: str, *, thin: bool) -> list[str]:
    """Return the tags of a new, empty volume."""
    if thin:
        return [tags.FRESH]
    extra = {"none": [tags.UNWIPED], "zero": [tags.ZERO]}.get(wipe, [])
    return [tags.NEW, tags.DIRTY, *extra]


def blank(volume: LogicalVolume) -> Blank:
    """Return how a volume may be proven to hold no data."""
    if tags.FORMATTING in volume.tags:
        return Blank.INTERRUPTED
    if any(tag in volume.tags for tag in UNUSED):
        return Blank.ZEROED if volume.thin else Blank.STAMPED
    return Blank.NEVER


def clean(volume: LogicalVolume) -> bool:
    """Whether all of a thick volume was zeroed or written by its user, and has to stay like that."""
    return not volume.thin and tags.DIRTY not in volume.tags and tags.UNWIPED not in volume.tags


def unused(volume: LogicalVolume) -> bool:
    return any(tag in volume.tags for tag in UNUSED)


def prepare(lvm: Lvm, volume: LogicalVolume, path: Path, *, block: bool, again: Look) -> LogicalVolume:
    """Make an active volume ready for use, for the first time. Return it as it is then.

    `again` looks it up once more, when nobody else can have it open. Raises FailedPrecondition for raw
    block access to what a filesystem was made on without zeroing, Busy, Unavailable.
    """

    def confirm() -> None:
        if again().tags != volume.tags:
            raise Busy(f"logical volume {volume.name} was changed meanwhile by another process; ask again")

    dirty = tags.DIRTY in volume.tags and tags.UNWIPED not in volume.tags
    if dirty and (block or tags.ZERO in volume.tags) and unused(volume):
        return _zeroed(lvm, volume, path, confirm)
    if dirty and block:
        raise FailedPrecondition(
            f"logical volume {volume.name} was made for filesystems: used as a raw block device, it could show what "
            "its space held before; make a new volume with volumeMode Block, or with the parameter wipe: zero"
        )
    if tags.NEW in volume.tags:
        contents.scrub(path, confirm)
        return _retagged(lvm, volume, add=[tags.FRESH], remove=[tags.NEW])
    return volume


def _zeroed(lvm: Lvm, volume: LogicalVolume, path: Path, confirm: Callable[[], None]) -> LogicalVolume:
    current = volume

    def note(offset: int) -> None:
        nonlocal current
        now, before = f"{tags.ZEROED}{offset}", tags.having(current.tags, tags.ZEROED)
        current = _retagged(lvm, current, add=[now], remove=[tag for tag in before if tag != now])

    contents.zero(path, tags.number(volume.tags, tags.ZEROED), volume.size, note, confirm)
    done = tags.having(current.tags, tags.ZEROED, tags.DIRTY, tags.NEW, tags.ZERO)
    return _retagged(lvm, current, add=[tags.FRESH], remove=[tag for tag in done if tag != tags.FRESH])


def _retagged(lvm: Lvm, volume: LogicalVolume, *, add: list[str], remove: list[str]) -> LogicalVolume:
    lvm.retag(volume.name, add=add, remove=remove)
    return replace(volume, tags=(volume.tags - set(remove)) | set(add))


def forward(lvm: Lvm, volume: LogicalVolume, state: str) -> None:
    """Note that mkfs begins (tags.FORMATTING), or that there may be data ("")."""
    marks = [tag for tag in (*UNUSED, tags.FORMATTING) if tag in volume.tags]
    if not marks or marks == [state]:
        return
    lvm.retag(volume.name, add=[state] if state else [], remove=[tag for tag in marks if tag != state])
