"""Let a mounted filesystem fill its device."""

from __future__ import annotations

from ..host import Host, sysfs
from ..model import Device
from . import blank
from .filesystem import BY_NAME, SUPERBLOCK_SPAN
from .format import TIME_LIMIT
from .views import View

SLACK = 64 * 1024  # bytes at the end that are less than any filesystem's block


def grow(host: Host, device: Device, view: View) -> None:
    """Grow the filesystem mounted in this view, if the device is larger."""
    kind = BY_NAME.get(view.mount.fs_type)
    if kind is None:
        return  # mounted by somebody else with a filesystem we do not make
    with blank.opened(device) as disk:
        start = disk.read(0, min(SUPERBLOCK_SPAN, disk.size))
    if sysfs.size_of(device.number) - kind.size(start) > SLACK:
        words = [word.format(device=device.path, path=view.mount.target) for word in kind.grow]
        host.run(*words, timeout=TIME_LIMIT)
