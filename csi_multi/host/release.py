"""Waiting for a device to be released: btrfs releases its device a moment after umount has returned."""

from __future__ import annotations

import time
from collections.abc import Callable

RELEASE_SECONDS = 2.0
POLL_SECONDS = 0.01


def stays_in_use(in_use: Callable[[], bool], has_known_user: Callable[[], bool] = lambda: False) -> bool:
    """Whether the device is in use for longer than a filesystem needs to release it.

    A known user (a mount, a published device) does not go by itself, so nothing is waited for.
    """
    deadline = time.monotonic() + RELEASE_SECONDS
    while in_use():
        if has_known_user() or time.monotonic() > deadline:
            return True
        time.sleep(POLL_SECONDS)
    return False
