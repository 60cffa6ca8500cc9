"""Thawing a filesystem that another program froze (fsfreeze) and that was unmounted then.

The kernel keeps such a filesystem and its device busy, and no path leads to it until it is mounted once more.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

from ..contract.errors import FailedPrecondition, StorageError
from ..contract.machine import Host
from ..contract.model import Device
from ..host import mounts, sysfs
from . import device_mounts, mount_paths, mounting

log = logging.getLogger(__name__)

FITHAW = 0xC0045878  # linux/fs.h


def thaw_unmounted(host: Host, handle: str, device: Device, staging: Path, fs_type: str) -> bool:
    """Return whether the filesystem on a busy device was frozen, and is thawed and unmounted now.

    It is mounted for a moment at the staging path. That succeeds only for the filesystem that keeps the device busy.
    """
    try:
        mount_paths.require_directory(staging)
        options = "ro" if sysfs.read_only(device.number) else "rw"
        mounting.mount(host, str(device.path), staging, fs_type, options)
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
