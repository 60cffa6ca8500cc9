"""Space that a copy shares with its source is needed twice as soon as one of them is written: it is promised twice."""

from __future__ import annotations

import random
from collections.abc import Callable

from csi_multi.contract import ResourceExhausted, Volume
from csi_multi.contract import backend as b

from ..assertions import CheckFailed, CheckSkipped
from ..check import check
from ..context import CheckContext
from ..operations.base import wait_until_ready
from .capacity import TRIES, require_single_promises

PIECE = 1 << 20  # bytes written at a time


def written_volume(t: CheckContext, size: int) -> Volume:
    """Return a volume of which every block was written, with bytes that cannot be compressed."""
    volume, noise = t.volume(size=size), random.Random(0)  # noqa: S311 - no secret
    offsets = range(0, volume.size, PIECE)
    t.write_pieces(volume, *((at, noise.randbytes(min(PIECE, volume.size - at))) for at in offsets))
    return volume


def expect_space_taken(t: CheckContext, method: str, copy: Callable[[Volume], Callable[[], object]]) -> None:
    """Copy up to three times; one must take its space, because others may free space at the same time."""
    require_single_promises(t)
    changes = []
    for _ in range(TRIES):
        try:
            volume = written_volume(t, 2 * t.size)
            before = t.client.capacity().available
            remove = copy(volume)
        except t.client.kind_of(ResourceExhausted) as error:
            raise CheckSkipped(f"the storage has no space for a copy of two times Storage.size: {error}") from error
        changes.append(before - t.client.capacity().available)
        if changes[-1] >= volume.size // 2:
            return
        remove()
        t.delete(volume)
    raise CheckFailed(
        f"capacity().available fell by {changes} bytes at {method} of a volume with {volume.size} bytes of data: each "
        "of the two may be written anew, and then needs space of its own; count what they share for both, or, if the "
        "storage is overcommitted without a limit, set Storage.overcommitted"
    )


@check(b.Capacity, b.Snapshots, data=True)
def what_a_snapshot_shares_with_its_volume_is_promised_to_both(t: CheckContext) -> None:
    def cut(volume: Volume) -> Callable[[], object]:
        made = wait_until_ready(t, t.snapshot(volume))
        return lambda: t.client.delete_snapshot(made.handle)

    expect_space_taken(t, "create_snapshot", cut)


@check(b.Capacity, b.Clone, data=True)
def what_a_clone_shares_with_its_source_is_promised_to_both(t: CheckContext) -> None:
    def clone(volume: Volume) -> Callable[[], object]:
        made = t.copy(volume)
        return lambda: t.client.delete(made.handle)

    expect_space_taken(t, "clone_volume", clone)
