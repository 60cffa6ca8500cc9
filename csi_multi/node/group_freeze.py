"""Freezing several volumes of this node together, while each is cut by its own backend.

A backend freezes the volume that it cuts (contract.Setting.frozen). Here that is done already, for all of the group, so
within the block a freeze of the same thread does nothing: whether everything stood still to the end is found out once,
at the end of the block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..contract.backend import Backend
from ..contract.errors import NotFound, Unavailable
from . import device_filesystems, device_mounts, freeze

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """How a volume is used on this node. `device`: None when it is not open here, and so stands still."""

    volume: str  # id
    device: Path | None = None
    raw: bool = False  # what writes to it cannot be stopped

    @property
    def frozen_device(self) -> Path | None:
        """The device whose filesystems are to be frozen; None where there are none."""
        return None if self.raw else self.device


def use_of(backend: Backend, volume: str, handle: str, secrets: Mapping[str, str]) -> VolumeUse:
    """Return how a volume is used on this node. A device that is open and not mounted counts as raw."""
    try:
        device = backend.find_device(handle, secrets=secrets)
    except NotFound:
        device = None  # its cut reports it
    if device is None:
        return VolumeUse(volume)
    bound = any(one.block for one in device_mounts.list_mounts(device))
    return VolumeUse(volume, device.path, raw=bound or not device_filesystems.find(device.path))


@contextmanager
def frozen_together(
    uses: Sequence[VolumeUse],
    seconds: float,
    observe: Callable[[str], AbstractContextManager[None]],
) -> Iterator[Callable[[], None]]:
    """Freeze the filesystems of these volumes for the block, for at most `seconds` in all.

    Yields a function that raises Unavailable once the time is over. The end of the block raises Unavailable when
    anything was thawed before. `observe` is entered with each volume's id for as long as that may be frozen.
    """
    mounted = [(use.volume, device) for use in uses if (device := use.frozen_device)]
    for _, device in mounted:
        _write_out(device)
    ends = time.monotonic() + seconds

    def require_time() -> None:
        if time.monotonic() >= ends:
            raise Unavailable(
                f"the group was not cut within {seconds:g} s, for which its filesystems are frozen at most; try again "
                "when the storage has less to do, or set freezeSeconds in its class"
            )

    with ExitStack() as stack:
        for volume, device in mounted:
            require_time()
            stack.enter_context(observe(volume))
            stack.enter_context(_logged(volume, seconds))
            stack.enter_context(freeze.frozen(device, ends - time.monotonic()))
            stack.enter_context(freeze.held(device))
        if any(not device_filesystems.find(device) for _, device in mounted):
            raise Unavailable("a filesystem of the group was unmounted just now; try again")
        yield require_time


def _write_out(device: Path) -> None:
    """Write out what is in memory, so that little is left to be written while all filesystems stand still."""
    for mount in device_filesystems.find(device):
        with device_filesystems.opened(mount) as descriptor:
            freeze.sync_filesystem(descriptor, mount.target)


@contextmanager
def _logged(volume: str, seconds: float) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        milliseconds = round((time.monotonic() - started) * 1000, 1)
        fields = {"volume": volume, "ms": milliseconds, "limit_ms": round(seconds * 1000)}
        log.info("a volume was frozen for its group snapshot", extra={"fields": fields})
