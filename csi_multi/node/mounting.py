"""Mounting and unmounting, so that no mount flag is visible in `ps`, in an error or in a log."""

from __future__ import annotations

from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, StorageError, Unavailable
from ..contract.machine import CommandFailed, Host
from ..contract.model import Device
from ..host import mounts
from . import device_mounts, exit_status
from .device_mounts import DeviceMount
from .exit_status import Answer

# Part of the output of mount(8) -> what it means. Only texts from here go into a message: mount and the kernel may
# repeat the flags.
_FAILURES: tuple[tuple[str, type[StorageError], str], ...] = (
    ("already mounted or mount point busy", Unavailable, "the device or the path is busy; try again"),
    (
        "wrong fs type, bad option, bad superblock",
        FailedPrecondition,
        "the kernel refuses the filesystem or one of the mount flags; the kernel log on the node says which",
    ),
    (
        "cannot mount",  # ... read-only
        FailedPrecondition,
        "the device is read-only, but the journal of the filesystem must be replayed first; "
        "stage the volume once read-write",
    ),
    (
        "can't read superblock",
        FailedPrecondition,
        "the superblock cannot be read, or the device is read-only and the journal must be replayed",
    ),
    ("Structure needs cleaning", FailedPrecondition, "the filesystem is damaged; repair it by hand"),
    (
        "File exists",  # btrfs before Linux 6.7
        FailedPrecondition,
        "a filesystem with the same uuid is mounted on this node; unstage the other volume first, or use Linux 6.7",
    ),
    ("unknown filesystem type", FailedPrecondition, "the kernel of this node does not support this filesystem"),
)


def mount(host: Host, source: str, target: Path, fs_type: str, options: str) -> None:
    """Mount, or bind if the options say so. The caller then checks the mount table."""
    fields = (source, str(target), fs_type, options)
    line = " ".join(mounts.escape(field) for field in fields) + " 0 0\n"
    what = f"mounting {source} ({fs_type}) at {target} failed with status"
    try:
        # As an fstab on stdin: flags may be sensitive, and everybody can read the arguments of a command.
        answer, result = exit_status.run(host, "mount", "--fstab", "/dev/stdin", "--target", str(target), stdin=line)
    except CommandFailed as error:
        raise Unavailable(f"{what} {error.status}; the kernel log on the node may say why") from None
    if answer is Answer.REFUSED:
        for phrase, kind, meaning in _FAILURES:
            if phrase in result.stderr:
                raise kind(f"{what} {result.status}: {meaning}")
        raise Unavailable(f"{what} {result.status}; the kernel log on the node may say why")


def bind_node(
    host: Host, device: Device, source: Path, target: Path, handle: str, options: str = "bind"
) -> DeviceMount:
    """Bind a device node on a file: the device's own node, or that of its read-only loop device."""
    mount(host, str(source), target, "none", options)
    return verify(host, device, target, handle)


def verify(host: Host, device: Device, target: Path, handle: str) -> DeviceMount:
    """Return the new mount as the mount table has it. A mount of anything else is undone and raised as an error."""
    try:
        found = device_mounts.mount_at(target, device, handle)
    except FailedPrecondition:
        unmount(host, target)
        raise
    if found is None:
        raise Unavailable(f"volume {handle!r}: nothing is mounted at {target} after it was mounted there; try again")
    return found


def unmount(host: Host, target: Path) -> None:
    """Unmount until nothing is left at the target. Raises InUse; never unmounts lazily."""
    present = mounts.all_at(target)
    for _ in present:
        _unmount_topmost(host, target)
    if present and mounts.at(target):
        raise Unavailable(
            f"{target} is still mounted after it was unmounted, so something else mounts it at the same time; try again"
        )


def _unmount_topmost(host: Host, target: Path) -> None:
    try:
        host.run("umount", "--no-canonicalize", "--", str(target))
    except CommandFailed as error:
        if mounts.at(target) is None:
            return  # another process has unmounted it
        if "busy" in error.stderr:
            raise InUse(f"{target} is in use by a process on this node; stop it, then try again") from None
        raise
