"""Images of several volumes as of one moment.

What is not attached stands still. Mounted filesystems are frozen, all of them before the first image is shared and
until the last one is. A raw block device cannot be suspended, so its image may be written while others are shared.
Then it does not share all of its blocks any more, and the images of raw devices are shared again, until none but the
last one was written in between. That one may be: its image is of the moment at which the others were as in theirs.

Only what is shared at once can be cut so; where blocks cannot be shared, volumes in use are refused.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from csi_multi.contract import Freeze, InUse, Unavailable
from csi_multi.host import file_extents, loopfile, mount_calls

from .client import Client, sync_path
from .labels import VolumeLabel
from .store import Store, loop_devices

log = logging.getLogger(__name__)

FREEZE_LIMIT = 10.0  # seconds for which the filesystems of a group are frozen at most
RAW_LIMIT = 3.0  # seconds in which the images of raw devices are shared again and again


class Cut(NamedTuple):
    """A locked volume, and the file that gets its image."""

    volume: str  # leaf
    image: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCut:
    volumes: Store[VolumeLabel]
    frozen: Freeze
    client: Client

    def cut(self, cuts: Sequence[Cut], *, reflink: bool) -> int:
        """Give each its volume's bytes as of one moment, and return when that was, in nanoseconds since 1970.

        Raises InUse where that is not possible while they are in use, Unavailable when it took too long.
        """
        devices = {one: loop_devices(self.volumes.image(one.volume)) for one in cuts}
        attached = [one for one in cuts if devices[one]]
        if attached and not reflink:
            raise InUse(
                f"volume {attached[0].volume!r} is attached to {devices[attached[0]][0]}, and the filesystem of its "
                "directory cannot share blocks, so a group would have to stand still until all data is copied; "
                "unpublish and unstage its volumes first, or keep the directory on xfs or btrfs"
            )
        mounted = {one: [device for device in devices[one] if loopfile.mounted(device)] for one in attached}
        raw = [one for one in attached if not mounted[one]]
        for one in attached:
            self._write_out(one, devices[one], mounted[one])
        with ExitStack() as stack:
            started = time.monotonic()
            for device in [device for one in attached for device in mounted[one]]:
                stack.enter_context(self.frozen(device, _remaining(started)))
                if not loopfile.mounted(device):
                    raise Unavailable(f"{device} was unmounted just now; try again")
            created = time.time_ns()
            for one in cuts:
                if one not in raw:
                    self._copy(one, reflink)
            self._copy_raw(raw)
        if attached != raw:
            milliseconds = (time.monotonic() - started) * 1000
            log.info("the filesystems of a group of %d volumes were frozen for %.0f ms", len(cuts), milliseconds)
        return created

    def _copy(self, one: Cut, reflink: bool) -> None:
        self.client.copy(self.volumes.image(one.volume), one.image, reflink=reflink)

    def _copy_raw(self, raw: Sequence[Cut]) -> None:
        """Share the images of raw devices as of one moment. Raises InUse when they are written too often for that."""
        ends = time.monotonic() + RAW_LIMIT
        while True:
            for one in raw:
                self._copy(one, reflink=True)
            if all(self._is_unchanged(one) for one in raw[:-1]):
                return
            if time.monotonic() > ends:
                raise InUse(
                    f"volumes {', '.join(one.volume for one in raw)} are written as raw block devices all the time, so "
                    "no image of all of them as of one moment could be had; stop what writes to them, or use them with "
                    "filesystems, which can be frozen"
                )

    def _is_unchanged(self, one: Cut) -> bool:
        """Whether a volume is still as its copy is. Raises InUse where the filesystem does not tell."""
        path = self.volumes.image(one.volume)
        if not file_extents.can_share_blocks(path):
            raise InUse(
                f"volume {one.volume!r} is in use as a raw block device, and the filesystem of its directory does not "
                "tell what was written while a group is cut; unpublish and unstage it first, or keep the directory on "
                "xfs or btrfs"
            )
        with path.open("rb") as volume, one.image.open("rb") as copy:
            size = os.fstat(copy.fileno()).st_size
            return next(file_extents.unshared(volume.fileno(), copy.fileno(), 0, size), None) is None

    def _write_out(self, one: Cut, devices: Sequence[Path], mounted: Sequence[Path]) -> None:
        """Write out what is in memory, so that little is left to be written while all filesystems stand still."""
        for device in mounted:
            for mount in loopfile.mounted(device):
                descriptor = os.open(mount.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    mount_calls.sync_filesystem(descriptor)
                finally:
                    os.close(descriptor)
        for device in devices:
            sync_path(device)
        sync_path(self.volumes.image(one.volume))


def _remaining(started: float) -> float:
    left = started + FREEZE_LIMIT - time.monotonic()
    if left <= 0:
        raise Unavailable(
            f"the filesystems of the group could not be frozen within {FREEZE_LIMIT:g} seconds; try again when less is "
            "written to them"
        )
    return left
