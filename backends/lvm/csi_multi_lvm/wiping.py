"""Old data in the space of a thick volume: it is removed before the volume is first used.

A new thick volume holds what was there before. Before its first use either all of it is zeroed or, when a filesystem
will hide the old data, only its ends, where signatures are. The progress is in the volume's tags, so that wiping is
resumed after a crash, and never applied to a volume that was used.

The note that a filesystem's volume was wiped need not be written at once: csi.new says that the ends are wiped again
before any use, which also removes what an interrupted mkfs has left. It goes when the volume may hold data.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from csi_multi.contract import Blank, FailedPrecondition

from . import block_io, labels
from .activation import HeldVolume
from .client import Client
from .report import LogicalVolume

UNUSED = (labels.NEW, labels.FRESH)
STATES = (*UNUSED, labels.FORMATTING)  # of a volume that holds no data


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


def used(volume: LogicalVolume) -> bool:
    """Return whether it may hold data."""
    return not any(tag in volume.tags for tag in STATES)


def prepare(client: Client, held: HeldVolume, *, block: bool, wiped: bool) -> LogicalVolume:
    """Make a volume ready for its first use, and return it with its new tags.

    `wiped`: this process has wiped the ends of this very device. Raises FailedPrecondition when a volume that was used
    for a filesystem without being zeroed is opened as a raw block device; Busy when it is in use, Unavailable.
    """
    volume, path = held.volume, held.path
    dirty = labels.DIRTY in volume.tags and labels.UNWIPED not in volume.tags
    if dirty and (block or labels.ZERO in volume.tags) and unused(volume):
        _require_alone(held)
        return _zero(client, volume, path)
    if dirty and block:
        raise FailedPrecondition(
            f"logical volume {volume.name} was created for filesystems: as a raw block device it could show old data "
            "of deleted volumes; create a new volume with volumeMode Block, or with the parameter wipe: zero"
        )
    if labels.NEW in volume.tags and not wiped:
        _require_alone(held)
        block_io.scrub(path, held=True)
    return volume


def _require_alone(held: HeldVolume) -> None:
    """Raise Busy unless the volume was looked at while nothing else could use it."""
    if not held.alone:
        raise block_io.in_use(held.path)


def _zero(client: Client, volume: LogicalVolume, path: Path) -> LogicalVolume:
    current = volume

    def record(offset: int) -> None:
        nonlocal current
        progress, before = f"{labels.BYTES_ZEROED}{offset}", labels.with_prefix(current.tags, labels.BYTES_ZEROED)
        current = _change_tags(client, current, add=[progress], remove=[tag for tag in before if tag != progress])

    done = labels.byte_count(volume.name, volume.tags, labels.BYTES_ZEROED)
    block_io.zero(path, done, volume.size, record, held=True)
    obsolete = labels.with_prefix(current.tags, labels.BYTES_ZEROED, labels.DIRTY, labels.NEW, labels.ZERO)
    return _change_tags(client, current, add=[labels.FRESH], remove=[tag for tag in obsolete if tag != labels.FRESH])


def _change_tags(client: Client, volume: LogicalVolume, *, add: list[str], remove: list[str]) -> LogicalVolume:
    client.change_tags(volume.name, add=add, remove=remove)
    return replace(volume, tags=(volume.tags - set(remove)) | set(add))


# What happens to it then: each is one command, and returns whether lvm says that it is recorded


def note_wiped(client: Client, name: str, owned: str) -> bool:
    """Record that the ends of an unused volume were wiped, so that they are not wiped again."""
    condition = f'{owned} && lv_tags={{"{labels.NEW}"}}'
    return client.change_tags(name, add=[labels.FRESH], remove=[labels.NEW], condition=condition)


def formatting(client: Client, name: str, owned: str) -> bool:
    """Record that mkfs begins, unless the volume may hold data."""
    states = " || ".join(f'lv_tags={{"{tag}"}}' for tag in STATES)
    return client.change_tags(name, add=[labels.FORMATTING], remove=UNUSED, condition=f"{owned} && ({states})")


def formatted(client: Client, name: str, owned: str) -> bool:
    """Record that the volume may hold data from now on."""
    return client.change_tags(name, remove=STATES, condition=owned)


def require_unused(volume: LogicalVolume) -> None:
    """Raise FailedPrecondition for a volume that may hold data."""
    if used(volume):
        raise FailedPrecondition(
            f"logical volume {volume.name} may hold data and must not be formatted; use it with its filesystem, or "
            "create a new volume"
        )
