"""Unstaging: a volume is unmounted at a staging path, and its device is closed with the last one.

Every step may be repeated from any intermediate state, as in staging.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from ..contract.errors import InUse, NotFound
from ..contract.machine import Host
from ..contract.model import Device
from . import blank_check, device_mounts, device_records, mount_paths, mounting, open_volume, readonly_loop, thaw, trim
from .device_mounts import DeviceCloser
from .open_volume import OpenVolume

log = logging.getLogger(__name__)


def unstage(host: Host, backend: DeviceCloser, handle: str, staging: Path) -> None:
    """Unmount at this staging path; close the device unless it is staged at another path too.

    The staging directory belongs to the caller and stays.
    """
    staging = mount_paths.resolve_parent(staging)
    volume = open_volume.find(backend, handle, staging)
    volume.require_own(*mount_paths.of_staging(staging))
    other_paths = mount_paths.of_staging(*volume.staging_paths - {staging})
    staged_elsewhere = any(one.path in other_paths for one in volume.mounts)
    if volume.records and not staged_elsewhere:  # without a record, another mount may be that of a staging path
        _refuse_published(volume, staging)
    trim.end(record.number for record in volume.records)
    mounting.unmount(host, *mount_paths.of_staging(staging))
    if not staged_elsewhere:
        _close(host, backend, volume, staging)
    mount_paths.remove(staging / mount_paths.BLOCK_FILE)  # until now it shows that this is no filesystem
    if staged_elsewhere:
        for record in volume.records:
            device_records.remove_path(record, staging)
    else:
        device_records.remove(volume.key, *(record.number for record in volume.records))


def _refuse_published(volume: OpenVolume, staging: Path) -> None:
    if published := device_mounts.outside(volume.mounts, mount_paths.of_staging(staging), volume.table):
        raise InUse(f"volume {volume.handle!r} is still published at {published[0].path}; unpublish it first")


def _close(host: Host, backend: DeviceCloser, volume: OpenVolume, staging: Path) -> None:
    if not volume.mounts or any(one.block for one in volume.mounts):  # a filesystem has no read-only loop device
        readonly_loop.detach_unused(host, volume.readonly_loops())
    if volume.device:
        if left := device_mounts.list_mounts(volume.device):
            raise InUse(f"volume {volume.handle!r} is still mounted at {left[0].path}; unmount it there first")
        _await_release(host, volume.handle, volume.device, staging, _filesystem(volume, staging))
    if volume.device or not volume.advice:
        with contextlib.suppress(NotFound):
            backend.close_device(volume.handle)


def _filesystem(volume: OpenVolume, staging: Path) -> str:
    """Return the name of the staged filesystem, "auto" when it is unmounted already, "" for raw block."""
    if volume.mounts:
        return "" if volume.mounts[0].block else volume.mounts[0].mount.fs_type
    return "" if (staging / mount_paths.BLOCK_FILE).exists() else "auto"


def _await_release(host: Host, handle: str, device: Device, staging: Path, fs_type: str) -> None:
    try:
        blank_check.await_release(handle, device)
    except InUse:
        if not fs_type or not _was_frozen(host, handle, device, staging, fs_type):
            raise
        blank_check.await_release(handle, device)


def _was_frozen(host: Host, handle: str, device: Device, staging: Path, fs_type: str) -> bool:
    """Return whether a frozen filesystem kept the device busy; it is thawed now. Raises MayBeFrozen."""
    try:
        thawed = thaw.thaw_unmounted(host, handle, device, staging, fs_type)
    except thaw.NotMountable as error:
        log.info("volume %s: its device stays busy, and not with a frozen filesystem: %s", handle, error)
        return False
    if thawed:
        log.warning(
            "volume %s: another program had frozen its filesystem, so its device stayed busy; it is thawed", handle
        )
    return thawed
