"""Growing: a filesystem fills its device, when the volume is expanded, staged, or before it is mounted."""

from __future__ import annotations

import logging
from pathlib import Path

from ..contract.errors import FailedPrecondition, Unavailable
from ..contract.machine import Host
from ..contract.model import NO_SECRETS, Device, SizeRange, Strings
from ..host import sysfs
from ..host.privilege import held
from . import blank_check, device_mounts, format, readonly_loop, stalled_writes
from .device_mounts import DeviceMount, ExpandedDevices
from .exit_status import CommandOutcome
from .filesystem import BY_NAME, SUPERBLOCK_SPAN, FilesystemType
from .format import LONG_TIME_LIMIT

log = logging.getLogger(__name__)

MIN_GROWTH = 64 * 1024  # bytes; a remainder at the end of the device may be smaller than a filesystem's block


def expand(
    host: Host, backend: ExpandedDevices, handle: str, path: Path, size: SizeRange, secrets: Strings = NO_SECRETS
) -> int:
    """Let the volume at this path fill its device; return the size of the device in bytes."""
    device, mounted = device_mounts.find_by_path(backend, handle, path, secrets)
    writable = mounted if mounted.block else _writable_mount(handle, device)
    backend.refresh_device(handle, secrets=secrets)
    current = sysfs.size_of(device.number)
    if current < size.required:
        # Not final: the storage system has grown the volume, and this node does not see it yet.
        raise Unavailable(
            f"volume {handle!r}: {device.path} has {current} bytes on this node, not yet the {size.required} "
            "requested; try again"
        )
    if mounted.block:
        readonly_loop.refresh(host, device)
    else:
        _grow_mounted(host, handle, device, writable)
    return current


def _writable_mount(handle: str, device: Device) -> DeviceMount:
    for mounted in device_mounts.list_mounts(device):
        if not mounted.block and not mounted.read_only and mounted.mount.root == "/":
            return mounted
    raise FailedPrecondition(
        f"volume {handle!r} is mounted read-only, so its filesystem cannot grow; stage it read-write"
    )


def _grow_mounted(host: Host, handle: str, device: Device, mounted: DeviceMount) -> None:
    """Grow the mounted filesystem if the device is larger. Raises FailedPrecondition when it cannot grow."""
    fs_type = BY_NAME.get(mounted.mount.fs_type)
    if fs_type is None:
        raise FailedPrecondition(
            f"volume {handle!r} is mounted as {mounted.mount.fs_type}, which this driver cannot grow; "
            f"it can grow {', '.join(BY_NAME)}"
        )
    if not _device_is_larger(device, fs_type):
        return
    if obstacle := _obstacle(fs_type, device):
        raise FailedPrecondition(f"volume {handle!r} at {mounted.path}: {obstacle}")
    _run(host, fs_type.grow_command, device, mounted)


def before_mount(host: Host, handle: str, device: Device, fs_type: FilesystemType) -> None:
    """Grow an unmounted filesystem, where this process may not grow it once it is mounted.

    This is the second choice, because the whole filesystem has to be checked first. One that cannot grow (resize2fs
    refuses bigalloc) is logged: it is still usable.
    """
    if not _obstacle(fs_type, device) or not _device_is_larger(device, fs_type):
        return
    for command in fs_type.grow_unmounted_commands:
        outcome, result = format.run_repair(host, handle, device, command)
        if outcome is CommandOutcome.REFUSED:
            log.warning(
                "volume %s: %s stays smaller than %s: %s exited with status %d: %s",
                *(handle, fs_type.name, device.path, command[0], result.status, " ".join(result.stderr.split())),
            )
            format.repair(host, handle, device, fs_type)
            return


def at_stage(host: Host, device: Device, mounted: DeviceMount) -> None:
    """Grow the mounted filesystem if the device is larger. One that cannot grow is logged: it is still usable."""
    fs_type = BY_NAME.get(mounted.mount.fs_type)
    if fs_type is None or not _device_is_larger(device, fs_type):
        return
    if obstacle := _obstacle(fs_type, device):
        log.warning("%s at %s stays smaller than its device: %s", fs_type.name, mounted.path, obstacle)
        return
    _run(host, fs_type.grow_command, device, mounted)


def _device_is_larger(device: Device, fs_type: FilesystemType) -> bool:
    with blank_check.open_device(device) as opened:
        start = opened.read(0, min(SUPERBLOCK_SPAN, opened.size))
        return opened.size - fs_type.superblock_size(start) > MIN_GROWTH


def _obstacle(fs_type: FilesystemType, device: Device) -> str:
    """Return why the kernel refuses to grow this filesystem while it is mounted; "" when it does not."""
    if fs_type.grow_capability and not held(fs_type.grow_capability):
        name = fs_type.grow_capability.name
        return f"{fs_type.name} grows while mounted only with {name}; grant it to the driver, or stage the volume again"
    if sysfs.size_of(device.number) < fs_type.grow_minimum:
        return (
            f"{fs_type.name} cannot grow to less than {fs_type.grow_minimum} bytes; expand the volume to at least that"
        )
    return ""


def _run(host: Host, command: tuple[str, ...], device: Device, mounted: DeviceMount) -> None:
    path = mounted.mount.target
    stalled_writes.require_writable(mounted.mount, f"growing the filesystem at {path}")
    host.run(*(word.format(device=device.path, path=path) for word in command), timeout=LONG_TIME_LIMIT)
