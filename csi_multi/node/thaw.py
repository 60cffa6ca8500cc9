"""Thawing a filesystem that another program froze (fsfreeze) and that was unmounted then.

The kernel keeps such a filesystem and its device busy, and no path leads to it until it is mounted once more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from pathlib import Path

from ..contract.errors import FailedPrecondition, StorageError
from ..contract.machine import Host
from ..contract.model import Device
from ..host import mount_calls, mounts, sysfs
from . import device_mounts, mount_paths, mounting
from .filesystem import BY_NAME, FilesystemType

log = logging.getLogger(__name__)

FITHAW = 0xC0045878  # linux/fs.h


def thaw_unmounted(host: Host, handle: str, device: Device, staging: Path, fs_type: str) -> bool:
    """Return whether the filesystem on a busy device was frozen, and is thawed and unmounted now.

    `fs_type`: "auto" if it is not known. It is mounted for a moment at the staging path. That succeeds only for the
    filesystem that keeps the device busy, or for any once the device is free.
    """
    try:
        mount_paths.require_directory(staging)
        _mount(host, device, staging, fs_type)
    except StorageError as error:
        log.info("volume %s: %s stays busy, and not with a frozen filesystem: %s", handle, device.path, error)
        return False
    try:
        mounting.verify(host, device, staging, handle)
        thawed = _thaw(device, staging)
    finally:
        mounting.unmount(host, staging)
    if thawed:
        log.warning(
            "volume %s: another program had frozen its filesystem, so its device stayed busy; it is thawed", handle
        )
    return thawed


def _mount(host: Host, device: Device, staging: Path, fs_type: str) -> None:
    """Mount it as the one of the supported filesystems that it is. Raises as mounting.mount does."""
    *others, last = [BY_NAME[fs_type]] if fs_type in BY_NAME else BY_NAME.values()
    for one in others:
        with contextlib.suppress(StorageError):
            return _mount_as(host, device, staging, one)
    return _mount_as(host, device, staging, last)


def _mount_as(host: Host, device: Device, staging: Path, fs_type: FilesystemType) -> None:
    access = "ro" if sysfs.read_only(device.number) else "rw"
    options = ",".join((access, *mount_calls.DRIVER_ONLY, *fs_type.mount_options))
    mounting.mount(host, str(device.path), staging, fs_type.name, options)


def _thaw(device: Device, staging: Path) -> bool:
    with mount_paths.opened_parent(staging) as parent:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(staging.name, flags, dir_fd=parent)
    try:
        entry = next((one for one in mounts.table() if one.id == mounts.id_of(descriptor)), None)
        if entry is None or device_mounts.match(entry, device) is None:
            raise FailedPrecondition(f"{staging} is not the mount of {device.path} any more; try again")
        fcntl.ioctl(descriptor, FITHAW, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:  # it is not frozen
            log.warning("the frozen filesystem on %s could not be thawed: %s", device.path, error)
        return False
    finally:
        os.close(descriptor)
    return True
