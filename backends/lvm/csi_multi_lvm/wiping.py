"""Old data in the space of a thick volume: it is removed before the volume is first used.

A new thick volume holds what was there before. Before its first use either all of it is zeroed or, when a filesystem
will hide the old data, only its ends, where signatures are. The progress is in the volume's tags, so that wiping is
resumed after a crash, and never applied to a volume that was used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from csi_multi.contract import Blank, Busy, FailedPrecondition

from . import block_io, labels
from .client import Client
from .report import LogicalVolume

UNUSED = (labels.NEW, labels.FRESH)


def initial_tags(wipe: str, *, thin: bool) -> list[str]:
    """Return the tags of a new, empty volume."""
    if thin:
        return [labels.FRESH]
    extra = {"none": [labels.UNWIPED], "zero": [labels.ZERO]}.get(wipe, [])
    return [labels.NEW, labels.DIRTY, *extra]


def blank(volume: LogicalVolume) -> Blank:
    """Return how a volume can be proven to hold no data."""
    if labels.FORMATTING in volume.tags:
        return Blank.INTERRUPTED
    if unused(volume):
        return Blank.ZEROED if volume.thin else Blank.STAMPED
    return Blank.NEVER


def clean(volume: LogicalVolume) -> bool:
    """Return whether a thick volume shows no old data anywhere, and must not show any when it grows."""
    return not volume.thin and labels.DIRTY not in volume.tags and labels.UNWIPED not in volume.tags


def unused(volume: LogicalVolume) -> bool:
    return any(tag in volume.tags for tag in UNUSED)


def prepare(
    client: Client, volume: LogicalVolume, path: Path, *, block: bool, read_again: Callable[[], LogicalVolume]
) -> LogicalVolume:
    """Make an active volume ready for its first use, and return it with its new tags.

    `read_again` returns the volume as it is while no other process can have it open. Raises FailedPrecondition when a
    volume that was used for a filesystem without being zeroed is opened as a raw block device; Busy, Unavailable.
    """

    def confirm() -> None:
        if read_again().tags != volume.tags:
            raise Busy(f"another process changed logical volume {volume.name} at the same time; try again")

    dirty = labels.DIRTY in volume.tags and labels.UNWIPED not in volume.tags
    if dirty and (block or labels.ZERO in volume.tags) and unused(volume):
        return _zero(client, volume, path, confirm)
    if dirty and block:
        raise FailedPrecondition(
            f"logical volume {volume.name} was created for filesystems: as a raw block device it could show old data "
            "of deleted volumes; create a new volume with volumeMode Block, or with the parameter wipe: zero"
        )
    if labels.NEW in volume.tags:
        block_io.scrub(path, confirm)
        return _change_tags(client, volume, add=[labels.FRESH], remove=[labels.NEW])
    return volume


def _zero(client: Client, volume: LogicalVolume, path: Path, confirm: Callable[[], None]) -> LogicalVolume:
    current = volume

    def record(offset: int) -> None:
        nonlocal current
        progress, before = f"{labels.BYTES_ZEROED}{offset}", labels.with_prefix(current.tags, labels.BYTES_ZEROED)
        current = _change_tags(client, current, add=[progress], remove=[tag for tag in before if tag != progress])

    block_io.zero(path, labels.byte_count(volume.name, volume.tags, labels.BYTES_ZEROED), volume.size, record, confirm)
    obsolete = labels.with_prefix(current.tags, labels.BYTES_ZEROED, labels.DIRTY, labels.NEW, labels.ZERO)
    return _change_tags(client, current, add=[labels.FRESH], remove=[tag for tag in obsolete if tag != labels.FRESH])


def _change_tags(client: Client, volume: LogicalVolume, *, add: list[str], remove: list[str]) -> LogicalVolume:
    client.change_tags(volume.name, add=add, remove=remove)
    return replace(volume, tags=(volume.tags - set(remove)) | set(add))


def formatting(client: Client, volume: LogicalVolume) -> None:
    """Record that mkfs begins. Raises FailedPrecondition for a volume that may hold data."""
    if not unused(volume) and labels.FORMATTING not in volume.tags:
        raise FailedPrecondition(
            f"logical volume {volume.name} may hold data and must not be formatted; use it with its filesystem, or "
            "create a new volume"
        )
    _replace_state(client, volume, [labels.FORMATTING])


def formatted(client: Client, volume: LogicalVolume) -> None:
    """Record that the volume may hold data from now on."""
    _replace_state(client, volume, [])


def _replace_state(client: Client, volume: LogicalVolume, state: list[str]) -> None:
    current = [tag for tag in (*UNUSED, labels.FORMATTING) if tag in volume.tags]
    if current and current != state:
        client.change_tags(volume.name, add=state, remove=[tag for tag in current if tag not in state])
