"""What the node reports about a volume: how full it is, and what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..contract.backend import Backend, NodeHealthReporter
from ..contract.errors import FailedPrecondition, Unavailable
from ..contract.model import Device, Health, HealthEntry
from ..host import sysfs
from . import device_mounts
from .device_mounts import DeviceCloser
from .requests import Usage

_STOPPED = frozenset({"ro", "emergency_ro", "shutdown"})  # super options of a filesystem that stopped writing


def usage(backend: DeviceCloser, handle: str, path: Path) -> tuple[Usage, ...]:
    """Return bytes, and inodes where the filesystem counts them. Raises NotFound."""
    device, mounted = device_mounts.find_by_path(backend, handle, path)
    if mounted.block:
        return (Usage(unit="bytes", total=sysfs.size_of(device.number)),)
    try:
        status = os.statvfs(mounted.path)
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(
            f"volume {handle!r}: statvfs of the filesystem at {mounted.path} failed: {reason}; "
            "see the kernel log on the node"
        ) from None
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


def health(devices: DeviceCloser, backend: Backend, handle: str) -> tuple[HealthEntry, ...]:
    """Return the findings of the node engine, then those of the backend, each (status, reason) once."""
    device = devices.find_device(handle)
    found = list(_device_health(device)) if device else []
    if isinstance(backend, NodeHealthReporter):
        found += backend.node_volume_health(handle)
    unique: dict[tuple[Health, str], HealthEntry] = {}
    for entry in found:
        unique.setdefault((entry.status, entry.reason), entry)
    return tuple(unique.values())


def _device_health(device: Device) -> Iterator[HealthEntry]:
    try:
        sysfs.verify(device)
        if not sysfs.size_of(device.number):
            raise sysfs.DeviceGone(f"device {device.path} has no medium: its size is 0")
    except sysfs.DeviceGone as error:
        yield HealthEntry(status=Health.INACCESSIBLE, reason="DeviceMissing", message=str(error))
    except FailedPrecondition as error:
        yield HealthEntry(status=Health.INACCESSIBLE, reason="DeviceMismatch", message=str(error))
    for mounted in device_mounts.list_mounts(device):
        if not mounted.block and not mounted.mount.read_only and _STOPPED & mounted.mount.super_options:
            yield HealthEntry(
                status=Health.DEGRADED,
                reason="FilesystemReadOnly",
                message=f"{mounted.mount.fs_type} at {mounted.path} stopped writing after an error; see the kernel "
                "log, then unstage the volume and stage it again so that the filesystem is checked",
            )
