"""Mounting and unmounting, so that no mount flag is visible in `ps`, in an error or in a log."""

from __future__ import annotations

from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, StorageError, Unavailable
from ..contract.machine import TIME_LIMIT, CommandFailed, Host
from ..contract.model import Device
from ..host import mounts
from . import device_mounts, exit_status
from .device_mounts import DeviceMount
from .exit_status import Answer
from .filesystem import FilesystemType

REPLAY_TIME_LIMIT = 900.0  # seconds; the work grows with the journal


class JournalNotReplayed(FailedPrecondition):
    """The device is read-only, and the kernel would have to write to it before it can mount the filesystem."""


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
        JournalNotReplayed,
        "the device is read-only, but the journal of the filesystem must be replayed first; "
        "stage the volume once read-write",
    ),
    (
        "can't read superblock",  # btrfs
        JournalNotReplayed,
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
    # As an fstab on stdin: flags may be sensitive, and everybody can read the arguments of a command.
    command = ("mount", "--fstab", "/dev/stdin", "--target", str(target))
    _run(host, f"mounting {source} ({fs_type}) at {target}", *command, stdin=line)


def mount_for_a_moment(host: Host, device: Device, target: Path, fs_type: FilesystemType) -> None:
    """Mount read-write and unmount, so that the kernel replays the journal.

    In a mount namespace of its own: nobody can write to it, and it ends with the command, whatever becomes of the
    driver. The flags are the engine's own.
    """
    options = ",".join(("rw", "nosuid", "nodev", "noexec", *fs_type.mount_options))
    script = 'mount -t "$1" -o "$2" -- "$3" "$4" && umount -- "$4"'
    command = ("unshare", "--mount", "sh", "-c", script, "sh", fs_type.name, options, str(device.path), str(target))
    _run(host, f"replaying the journal of {device.path} ({fs_type.name})", *command, timeout=REPLAY_TIME_LIMIT)


def _run(host: Host, what: str, *command: str, stdin: str | None = None, timeout: float = TIME_LIMIT) -> None:
    try:
        answer, result = exit_status.run(host, *command, stdin=stdin, timeout=timeout)
    except CommandFailed as error:
        raise Unavailable(f"{what} failed with status {error.status}; the kernel log on the node may say why") from None
    if answer is Answer.REFUSED:
        for phrase, kind, meaning in _FAILURES:
            if phrase in result.stderr:
                raise kind(f"{what} failed with status {result.status}: {meaning}")
        raise Unavailable(f"{what} failed with status {result.status}; the kernel log on the node may say why")


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
