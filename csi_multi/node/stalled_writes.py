"""Writing to a mounted filesystem that another program may have frozen (fsfreeze), or whose disk hangs.

A write then waits in the kernel, where nothing can end it, and the volume's lock would be held as long.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from ..contract.errors import Unavailable
from ..host import bounded, mounts
from ..host.mounts import MountPoint
from . import mount_paths

STALL_TIMEOUT = 10.0  # seconds for one step


def write(mounted: MountPoint, what: str, change: Callable[[int], None], progress: Callable[[], object]) -> None:
    """Change something through a descriptor of the root of this very mount, and raise what the change raises.

    Raises Unavailable, which names `what` and the remedy, when `progress` returns the same for STALL_TIMEOUT.
    """
    try:
        bounded.ask(f"the filesystem at {mounted.target}", lambda: _open(mounted, change), STALL_TIMEOUT, progress)
    except bounded.NoAnswer:
        raise Unavailable(
            f"{what}: nothing could be written for {STALL_TIMEOUT:g} s: its disk hangs, or another program froze "
            f"the filesystem; to thaw it: fsfreeze --unfreeze {mounted.target}"
        ) from None


def require_writable(mounted: MountPoint, what: str) -> None:
    """Raise Unavailable when a write to this mount would not end. Nothing is written."""
    write(mounted, what, _wait_for_write, lambda: None)


def _open(mounted: MountPoint, change: Callable[[int], None]) -> None:
    with mount_paths.opened(Path(mounted.target), directory=True) as descriptor:
        if mounts.id_of(descriptor) != mounted.id:
            raise Unavailable(f"something else is mounted at {mounted.target} by now; try again")
        change(descriptor)


def _wait_for_write(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the kernel waits for a thaw before it looks for the name, which nothing has
        os.rmdir(f".{uuid.uuid4().hex}", dir_fd=descriptor)
