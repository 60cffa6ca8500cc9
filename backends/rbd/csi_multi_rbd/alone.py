"""Who else has an image open: every client that maps it for writing watches it.

The commands of a controller watch it too, as long as they run, and a client that died up to 30 s longer.
"""

from __future__ import annotations

import time

from csi_multi.contract import FailedPrecondition

from .mapped import Mapped
from .rbd import Rbd

LINGER = 10.0  # seconds for others to leave
STEP = 0.5


def await_alone(rbd: Rbd, image: str, shown: Mapped | None = None, *, seen: tuple[str, ...] | None = None) -> None:
    """Return when nobody but this node has the image. Raises FailedPrecondition, naming who has it.

    `seen` are the watchers of a look that was made just now.
    """
    ends = time.monotonic() + LINGER
    while others := _others(rbd.watchers(image) if seen is None else seen, shown):
        if time.monotonic() > ends:
            raise elsewhere(rbd, image, others)
        time.sleep(STEP)
        seen = None


def lost(watchers: tuple[str, ...], shown: Mapped) -> bool:
    """Whether the cluster has forgotten who maps it here: shut out, or silent for too long. Writes then fail."""
    return shown.client not in watchers if shown.client else not watchers


def elsewhere(rbd: Rbd, image: str, others: tuple[str, ...]) -> FailedPrecondition:
    who = ", ".join(others) or "a client that has just left"
    return FailedPrecondition(
        f"image {rbd.spec(image)} is in use elsewhere, by {who}: unpublish and unstage it on that node; a node that "
        "died is forgotten after about 30 s"
    )


def _others(watchers: tuple[str, ...], shown: Mapped | None) -> tuple[str, ...]:
    if shown is None:
        return watchers
    if shown.client:
        return tuple(one for one in watchers if one != shown.client)
    return watchers if len(watchers) > 1 else ()  # which of them is our rbd-nbd, nobody tells
