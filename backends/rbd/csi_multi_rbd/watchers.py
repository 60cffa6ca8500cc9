"""Watchers: every client that has an image open for writing watches it, so they show which clients use the image.

A command of a controller watches an image while it runs. The watch of a dead client lasts for up to 30 s more.
"""

from __future__ import annotations

import time

from csi_multi.contract import FailedPrecondition, InUse

from .client import Client
from .resources import MappedImage

MAX_WAIT = 10.0  # seconds for other clients to close the image
CLOSING_SECONDS = 5.0  # for a command of a controller to close the image
POLL_SECONDS = 0.5


def wait_until_unwatched(
    client: Client, image: str, mapping: MappedImage | None = None, *, watchers: tuple[str, ...] | None = None
) -> None:
    """Return when only this node has the image open. Raises FailedPrecondition with the addresses of others.

    `mapping` is this node's own. `watchers` were listed just now.
    """
    first = client.watchers(image) if watchers is None else watchers
    if others := _remaining(client, image, first, mapping, MAX_WAIT):
        raise in_use_elsewhere(client, image, others)


def refuse_open(client: Client, image: str) -> None:
    """Raise InUse with the clients that have the image open and keep it open. A command of a controller closes it
    soon, for example one that removes a copy, which opens its source too.
    """
    if watchers := _remaining(client, image, client.watchers(image), None, CLOSING_SECONDS):
        raise InUse(
            f"image {client.spec(image)} is open: watched by {', '.join(watchers)}; unpublish and unstage the volume "
            "there first, or unmap the image; the watch of a dead client ends after about 30 s"
        )


def watch_lost(watchers: tuple[str, ...], mapping: MappedImage) -> bool:
    """Return whether the cluster no longer knows this mapping: it was blocklisted or cut off. Its writes fail."""
    return mapping.client not in watchers if mapping.client else not watchers


def in_use_elsewhere(client: Client, image: str, others: tuple[str, ...]) -> FailedPrecondition:
    who = ", ".join(others) or "a client that has just closed it"
    return FailedPrecondition(
        f"image {client.spec(image)} is in use elsewhere, by {who}; unpublish and unstage the volume on that node "
        "first; the watch of a dead node ends after about 30 s"
    )


def _remaining(
    client: Client, image: str, watchers: tuple[str, ...], mapping: MappedImage | None, seconds: float
) -> tuple[str, ...]:
    """Return the clients, other than this node's own, that still have the image open after so many seconds."""
    ends = time.monotonic() + seconds
    while (others := of_others(watchers, mapping)) and time.monotonic() <= ends:
        time.sleep(POLL_SECONDS)
        watchers = client.watchers(image)
    return others


def of_others(watchers: tuple[str, ...], mapping: MappedImage | None) -> tuple[str, ...]:
    """Return the watchers without this node's own mapping."""
    if mapping is None:
        return watchers
    if mapping.client:
        return tuple(one for one in watchers if one != mapping.client)
    return watchers if len(watchers) > 1 else ()  # one is this node's rbd-nbd; its address is not known
