"""Let a filesystem fill its device."""

from __future__ import annotations

import logging
from pathlib import Path

from ..contract.backend import Backend, Expand
from ..contract.errors import FailedPrecondition, Unavailable
from ..contract.machine import Host
from ..contract.model import Device, SizeRange
from ..host import sysfs
from ..host.privilege import held
from . import blank_check, device_mounts, readonly_loop
from .device_mounts import View
from .filesystem import BY_NAME, SUPERBLOCK_SPAN, Filesystem
from .format import TIME_LIMIT

log = logging.getLogger(__name__)

SLACK = 64 * 1024  # bytes at the end that are less than any filesystem's block


def expand(host: Host, backend: Backend, handle: str, path: Path, size: SizeRange) -> int:
    """Return the size of the device, which its filesystem now fills."""
    device, view = device_mounts.locate(backend, handle, path)
    writable = view if view.block else _writable(handle, device)
    if isinstance(backend, Expand):
        backend.refresh_device(handle)
    now = sysfs.size_of(device.number)
    if now < size.required:
        # Not final: the storage system was asked to grow first, and this node has yet to see it.
        raise Unavailable(
            f"volume {handle!r}: {device.path} has {now} bytes on this node, not yet the {size.required} asked for"
        )
    if view.block:
        readonly_loop.refresh(host, device)
    else:
        on_demand(host, handle, device, writable)
    return now


def before_mount(host: Host, device: Device, kind: Filesystem) -> None:
    """Grow an unmounted filesystem, where this process may not grow it once it is mounted.

    It is the second choice, because it has to check all of the filesystem before.
    """
    if _obstacle(kind, device) and kind.grow_unmounted and _larger(device, kind):
        for words in kind.grow_unmounted:
            _run(host, words, device)


def at_stage(host: Host, device: Device, view: View) -> None:
    """Grow the mounted filesystem if the device is larger; a volume that cannot grow is still of use."""
    kind = BY_NAME.get(view.mount.fs_type)
    if kind is None or not _larger(device, kind):
        return
    if obstacle := _obstacle(kind, device):
        log.warning("%s at %s stays smaller than its device: %s", kind.name, view.path, obstacle)
        return
    _run(host, kind.grow, device, view)


def on_demand(host: Host, handle: str, device: Device, view: View) -> None:
    """Grow the mounted filesystem if the device is larger. Raises FailedPrecondition when it cannot."""
    kind = BY_NAME.get(view.mount.fs_type)
    if kind is None:
        raise FailedPrecondition(f"volume {handle!r} is mounted as {view.mount.fs_type}, which is not supported")
    if not _larger(device, kind):
        return
    if obstacle := _obstacle(kind, device):
        raise FailedPrecondition(f"volume {handle!r} at {view.path}: {obstacle}")
    _run(host, kind.grow, device, view)


def _larger(device: Device, kind: Filesystem) -> bool:
    with blank_check.opened(device) as disk:
        start = disk.read(0, min(SUPERBLOCK_SPAN, disk.size))
        return disk.size - kind.size(start) > SLACK


def _obstacle(kind: Filesystem, device: Device) -> str:
    """Say why the kernel would refuse to grow this filesystem while it is mounted; "" when it would not."""
    if kind.grow_capability and not held(kind.grow_capability):
        name = kind.grow_capability.name
        return f"{kind.name} grows while mounted only with {name}; grant it to the driver, or stage the volume again"
    if sysfs.size_of(device.number) < kind.grow_minimum:
        return f"{kind.name} cannot grow to less than {kind.grow_minimum} bytes; expand the volume to that at least"
    return ""


def _run(host: Host, words: tuple[str, ...], device: Device, view: View | None = None) -> None:
    path = view.mount.target if view else ""
    corrected = (0, 1) if words[0] == "e2fsck" else (0,)
    host.run(*(word.format(device=device.path, path=path) for word in words), ok=corrected, timeout=TIME_LIMIT)


def _writable(handle: str, device: Device) -> View:
    for view in device_mounts.of(device):
        if not view.block and not view.read_only and view.mount.root == "/":
            return view
    raise FailedPrecondition(f"volume {handle!r} is mounted read-only, so its filesystem cannot grow; stage read-write")
