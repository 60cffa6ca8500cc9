"""Mount and unmount, so that no mount flag is seen in `ps`, in an error or in a log."""

from __future__ import annotations

from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, StorageError, Unavailable
from ..contract.machine import CommandFailed, Host
from ..host import mounts

# What mount(8) says, in part -> what it means. Only texts from here reach a message: mount and the
# kernel may repeat the flags.
_REASONS: tuple[tuple[str, type[StorageError], str], ...] = (
    ("already mounted or mount point busy", Unavailable, "the device or the path is busy; try again"),
    (
        "wrong fs type, bad option, bad superblock",
        FailedPrecondition,
        "the kernel refuses the filesystem or one of the mount flags; the kernel log on the node says which",
    ),
    (
        "cannot mount",  # ... read-only
        FailedPrecondition,
        "the device is read-only, and the filesystem needs writing (replay of its journal); "
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
    ("unknown filesystem type", FailedPrecondition, "the kernel of this node does not have this filesystem"),
)


def mount(host: Host, source: str, target: Path, fs_type: str, options: str) -> None:
    """Mount, or bind when the options say so. The caller checks what the mount table shows then."""
    fields = (source, str(target), fs_type, options)
    line = " ".join(mounts.escape(field) for field in fields) + " 0 0\n"
    try:
        # As an fstab on stdin: flags may be sensitive, and the words of a command are public.
        host.run("mount", "--fstab", "/dev/stdin", "--target", str(target), stdin=line)
    except CommandFailed as error:
        what = f"mounting {source} ({fs_type}) at {target} failed with status {error.status}"
        for phrase, kind, meaning in _REASONS:
            if phrase in error.stderr:
                raise kind(f"{what}: {meaning}") from None
        raise Unavailable(f"{what}; the kernel log on the node may say why") from None


def unmount(host: Host, target: Path) -> None:
    """Unmount until nothing is left at the target. Raises InUse; never detaches lazily."""
    present = mounts.stack(target)
    for _ in present:
        _unmount_top(host, target)
    if present and mounts.at(target):
        raise Unavailable(f"{target} is still mounted after it was unmounted; something mounts it at the same time")


def _unmount_top(host: Host, target: Path) -> None:
    try:
        host.run("umount", "--no-canonicalize", "--", str(target))
    except CommandFailed as error:
        if mounts.at(target) is None:
            return  # somebody else was faster
        if "busy" in error.stderr:
            raise InUse(f"{target} is in use by a process on this node; stop it, then try again") from None
        raise
