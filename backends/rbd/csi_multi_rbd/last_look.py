"""The image that this thread has just looked up, so that the same request does not look again before it copies it.

The core reads the stamp of a source right before it has it copied, in the same thread, so what is kept is never of an
earlier request. Meanwhile nothing of this process deletes the source, or enlarges one that a snapshot is taken of: the
locks of the request keep that out. If another process does, nothing is lost: the commands that follow name the image,
and fail when it is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .client import Client
from .resources import Image

SECONDS = 5.0  # from the begin of a look; one that took longer is made again


class LastLook(threading.local):
    """What was found is used once, by the user who has looked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: tuple[float, Client, Image] | None = None

    def info(self, client: Client, name: str) -> Image:
        """Look an image up, and keep what was found. Raises as `Client.info` does."""
        self._kept = None
        began = self._clock()
        image = client.info(name)
        self._kept = (began, client, image)
        return image

    def take(self, client: Client, name: str) -> Image:
        """Return the image that `info` has just found for this user, else look it up. Raises as `Client.info` does."""
        kept, self._kept = self._kept, None
        if kept:
            began, user, image = kept
            if user is client and image.name == name and self._clock() - began < SECONDS:
                return image
        return client.info(name)
