"""How full a volume is, and making it larger while it is in use."""

from __future__ import annotations

import os
from pathlib import Path

from ..contract.backend import Backend, Expand
from ..contract.errors import FailedPrecondition, Unavailable
from ..contract.machine import Host
from ..contract.model import Device, SizeRange
from ..host import sysfs
from . import device_mounts, grow, readonly_loop
from .device_mounts import View
from .requests import Usage


def usage(backend: Backend, handle: str, path: Path) -> tuple[Usage, ...]:
    device, view = device_mounts.locate(backend, handle, path)
    if view.block:
        return (Usage(unit="bytes", total=sysfs.size_of(device.number)),)
    try:
        status = os.statvfs(view.path)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"volume {handle!r}: the filesystem at {view.path} does not answer: {reason}") from None
    unit = status.f_frsize
    space = Usage(
        unit="bytes",
        total=status.f_blocks * unit,
        used=(status.f_blocks - status.f_bfree) * unit,
        available=status.f_bavail * unit,
    )
    if not status.f_files:
        return (space,)  # btrfs has no fixed number of inodes
    used = status.f_files - status.f_ffree
    return space, Usage(unit="inodes", total=status.f_files, used=used, available=status.f_favail)


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
        grow.on_demand(host, handle, device, writable)
    return now


def _writable(handle: str, device: Device) -> View:
    for view in device_mounts.of(device):
        if not view.block and not view.read_only and view.mount.root == "/":
            return view
    raise FailedPrecondition(f"volume {handle!r} is mounted read-only, so its filesystem cannot grow; stage read-write")
