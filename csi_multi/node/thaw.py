"""Thawing: the filesystem of an open directory, and one that was frozen and then unmounted.

The kernel keeps such a filesystem and its device busy, and no path leads to it until it is mounted once more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import FailedPrecondition, StorageError, Unavailable
from ..contract.machine import Host
from ..contract.model import Device
from ..host import mount_calls, mounts, sysfs
from . import device_mounts, mount_paths, mounting
from .filesystem import BY_NAME, FilesystemType

log = logging.getLogger(__name__)

FITHAW = 0xC0045878  # linux/fs.h
ATTEMPTS = 3
PAUSE = 0.2  # seconds after the first attempt, and more after each


class MayBeFrozen(Unavailable):
    """A filesystem could not be thawed. What its freeze has noted stays, so that it is tried again."""


class NotMountable(MayBeFrozen):
    """The filesystem that keeps a device busy, frozen or not, could not be mounted to thaw it."""


def call_kernel(descriptor: int, request: int) -> None:
    """Freeze or thaw the filesystem of an open directory. Raises OSError."""
    fcntl.ioctl(descriptor, request, 0)


def thaw(descriptor: int, target: str, remedy: str = "") -> bool:
    """Thaw the filesystem of an open directory, and return whether it was frozen. Raises MayBeFrozen."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            call_kernel(descriptor, FITHAW)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            log.error("attempt %d to thaw %s failed: %s", attempt, target, error)
        else:
            return True
        time.sleep(attempt * PAUSE)
    raise MayBeFrozen(
        f"{target} may still be frozen: {ATTEMPTS} attempts to thaw it failed; "
        f"the driver tries again, or run: {remedy or f'fsfreeze --unfreeze {target}'}"
    )


def thaw_unmounted(host: Host, handle: str, device: Device, staging: Path, fs_type: str) -> bool:
    """Return whether the filesystem on a busy device was frozen; it is thawed and unmounted now.

    `fs_type`: "auto" if it is not known. It is mounted for a moment at the staging path. That succeeds only for the
    filesystem that keeps the device busy, or for any once the device is free. Raises NotMountable, MayBeFrozen.
    """
    try:
        mount_paths.require_directory(staging)
        _mount(host, device, staging, fs_type)
    except StorageError as error:
        raise NotMountable(
            f"{device.path} is in use, and cannot be mounted to see whether it is frozen: {error}"
        ) from None
    try:
        mounting.verify(host, device, staging, handle)
        with _opened(device, staging) as descriptor:
            remedy = f"fsfreeze --unfreeze DIRECTORY, where {device.path} is mounted"
            return thaw(descriptor, f"the filesystem on {device.path}", remedy)
    finally:
        mounting.unmount(host, staging)


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


@contextlib.contextmanager
def _opened(device: Device, staging: Path) -> Iterator[int]:
    """Yield a descriptor of the root of the device's mount. Raises FailedPrecondition, Unavailable."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with mount_paths.opened_parent(staging) as parent:
            descriptor = os.open(staging.name, flags, dir_fd=parent)
    except OSError as error:
        raise Unavailable(f"{staging} cannot be opened: {error.strerror}; try again") from error
    try:
        entry = next((one for one in mounts.table() if one.id == mounts.id_of(descriptor)), None)
        if entry is None or device_mounts.match(entry, device) is None:
            raise FailedPrecondition(f"{staging} is not the mount of {device.path} any more; try again")
        yield descriptor
    finally:
        os.close(descriptor)
