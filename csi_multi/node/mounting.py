"""Mounting and unmounting, at the place that was looked at, so that no flag is visible in `ps`, an error or a log.

A filesystem is mounted by calls of the kernel where mount(8) would make nothing but the same calls. mount(8) is run for
options that it may act upon itself (mount_flags.for_kernel), for filesystems that the driver does not make, which may
have a helper /sbin/mount.TYPE, where the kernel is older than Linux 5.2 or a container forbids the calls, and after a
call that failed: it tries once more, read-only where the device is, and its answer says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Collection
from pathlib import Path

from ..contract.errors import FailedPrecondition, InUse, StorageError, Unavailable
from ..contract.machine import TIME_LIMIT, CommandFailed, Host
from ..contract.model import Device
from ..host import mount_calls, mounts
from . import device_mounts, exit_status, mount_flags, mount_paths
from .device_mounts import DeviceMount
from .exit_status import CommandOutcome
from .filesystem import BY_NAME, FilesystemType

log = logging.getLogger(__name__)

REPLAY_TIME_LIMIT = 900.0  # seconds; the work grows with the journal


class JournalNotReplayed(FailedPrecondition):
    """The device is read-only, and the kernel would have to write to it before it can mount the filesystem."""


# Part of the output of a command -> what it means. Only texts from here go into a message: mount and the kernel may
# repeat the flags.
Failures = tuple[tuple[str, type[StorageError], str], ...]
_OF_THE_KERNEL: Failures = (
    ("Structure needs cleaning", FailedPrecondition, "the filesystem is damaged; repair it by hand"),
    (
        "File exists",  # btrfs before Linux 6.7
        FailedPrecondition,
        "a filesystem with the same uuid is mounted on this node; unstage the other volume first, or use Linux 6.7",
    ),
)
_OF_MOUNT: Failures = (  # mount(8)
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
    ("unknown filesystem type", FailedPrecondition, "the kernel of this node does not support this filesystem"),
    *_OF_THE_KERNEL,
)
_OF_REPLAY: Failures = (  # replay_mount.py
    ("No such device", FailedPrecondition, "the kernel of this node does not support this filesystem"),
    (
        "Function not implemented",
        FailedPrecondition,
        "the kernel of this node is older than Linux 5.2; stage the volume once read-write",
    ),
    ("Invalid argument", FailedPrecondition, "the kernel refuses the filesystem; the kernel log on the node says why"),
    *_OF_THE_KERNEL,
)


def mount(host: Host, source: str, target: Path, fs_type: str, options: str) -> None:
    """Mount a filesystem on this very directory. The caller then checks the mount table."""
    with mount_paths.opened(target, directory=True) as descriptor:
        if _mount_by_calls(host, source, descriptor, target, fs_type, options):
            _refuse_moved(descriptor, target)
            return
        path = f"/proc/{os.getpid()}/fd/{descriptor}/."  # "/.": mount(8) follows no link at the end of a path
        line = " ".join(mounts.escape(field) for field in (source, path, fs_type, options)) + " 0 0\n"
        # As an fstab on stdin: flags may be sensitive, and everybody can read the arguments of a command.
        command = ("mount", "--no-canonicalize", "--fstab", "/dev/stdin", "--target", path)
        try:
            _run(host, f"mounting {source} ({fs_type}) at {target}", command, _OF_MOUNT, stdin=line)
        except StorageError:
            _refuse_moved(descriptor, target)
            raise
        _refuse_moved(descriptor, target)


def _mount_by_calls(host: Host, source: str, descriptor: int, target: Path, fs_type: str, options: str) -> bool:
    """Mount on what the descriptor shows. Return False when mount(8) has to: then nothing is mounted."""
    known = mount_flags.for_kernel([options])
    if known is None or fs_type not in BY_NAME:
        return False
    flags, of_filesystem = known
    call = functools.partial(mount_calls.mount_detached, fs_type, source, of_filesystem, flags)
    try:
        made = host.call(call, "mount", source, str(target), discard=os.close)
        try:
            mount_calls.attach(made, descriptor)
        finally:
            os.close(made)
    except OSError as error:
        # The kernel repeats options, and of those that it gets here none is sensitive.
        log.info("mounting %s (%s) at %s failed, so mount(8) tries it: %s", source, fs_type, target, error.strerror)
        return False
    return True


def replay_by_mounting(host: Host, device: Device, fs_type: FilesystemType) -> None:
    """Mount read-write and unmount, so that the kernel replays the journal. No mount table ever shows the mount."""
    command = (*exit_status.REPLAY_MOUNT, fs_type.name, str(device.path), *fs_type.mount_options)
    what = f"replaying the journal of {device.path} ({fs_type.name})"
    _run(host, what, command, _OF_REPLAY, timeout=REPLAY_TIME_LIMIT)


def _run(
    host: Host,
    what: str,
    command: tuple[str, ...],
    failures: Failures,
    *,
    stdin: str | None = None,
    timeout: float = TIME_LIMIT,
) -> None:
    try:
        outcome, result = exit_status.run(host, *command, stdin=stdin, timeout=timeout)
    except CommandFailed as error:
        raise Unavailable(f"{what} failed with status {error.status}; the kernel log on the node may say why") from None
    if outcome is CommandOutcome.REFUSED:
        for phrase, kind, meaning in failures:
            if phrase in result.stderr:
                raise kind(f"{what} failed with status {result.status}: {meaning}")
        raise Unavailable(f"{what} failed with status {result.status}; the kernel log on the node may say why")


def bind(source: Path, target: Path, *, directory: bool, flags: Collection[str] | None = None) -> None:
    """Bind a directory, or a device node on a file, with these flags. The caller then checks the mount table."""
    with (
        mount_paths.opened(mount_paths.resolve_parent(source), directory=directory) as shown,
        mount_paths.opened(target, directory=directory) as descriptor,
    ):
        try:
            mount_calls.bind(shown, descriptor, flags)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise Unavailable(f"binding {source} at {target} failed: {reason}; try again") from None
        _refuse_moved(descriptor, target)


def bind_node(
    device: Device, source: Path, target: Path, handle: str, host: Host, flags: Collection[str] | None = None
) -> DeviceMount:
    """Bind a device node on a file: the device's own node, or that of its read-only loop device."""
    bind(source.resolve(), target, directory=False, flags=flags)
    return verify(host, device, target, handle)


def _refuse_moved(descriptor: int, target: Path) -> None:
    """Undo a new mount and raise Unavailable if what it was mounted on has another path by now.

    From now on it keeps that path, because the kernel renames nothing that something is mounted on. A rename that
    looked for mounts before this one may still be under way, so it is waited for.
    """
    mount_paths.await_renames(descriptor)
    found = Path(f"/proc/self/fd/{descriptor}").readlink()
    if found == target:
        return
    with contextlib.suppress(OSError):
        root = os.open(found, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if mounts.id_of(root) != mounts.id_of(descriptor):
                mount_calls.detach(root)
        finally:
            os.close(root)
    raise Unavailable(f"{target} was moved to {found} while the volume was being mounted there; try again")


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


def unmount(host: Host, *targets: Path) -> None:
    """Unmount until nothing is left at the targets. Raises InUse; never unmounts lazily."""
    present = mounts.all_at(*targets)
    for target in targets:
        for _ in mounts.among(present, target):
            _unmount_topmost(host, target)
    if present and (left := mounts.all_at(*targets)):
        raise Unavailable(
            f"{left[0].target} is still mounted after it was unmounted, so something else mounts it at the same time; "
            "try again"
        )


def _unmount_topmost(host: Host, target: Path) -> None:
    def call() -> None:
        with contextlib.ExitStack() as stack:
            try:
                parent = stack.enter_context(mount_paths.opened_parent(target))
            except OSError as error:
                reason = os.strerror(error.errno or 0).lower()
                raise Unavailable(f"{target} cannot be reached to unmount it: {reason}") from None
            # What is mounted there was checked, and as long as it is, nothing else can have this name.
            mount_calls.unmount(parent, target.name)

    try:
        host.call(call, "umount", str(target))
    except OSError as error:
        if mounts.at(target) is None:
            return  # another process has unmounted it
        if obstacle := _other_mount(target):
            raise InUse(f"{target} cannot be unmounted while {obstacle} is mounted; unmount that first") from None
        if error.errno == errno.EBUSY:
            raise InUse(
                f"{target} is in use by a process on this node; stop it, then try again (a process that cannot be "
                f"stopped may wait for a frozen filesystem; to thaw it: fsfreeze --unfreeze {target})"
            ) from None
        reason = os.strerror(error.errno or 0).lower()
        raise Unavailable(f"unmounting {target} failed: {reason}; see the kernel log") from None


def _other_mount(target: Path) -> str:
    """Return what is mounted inside of the mount at the target, or over a directory above it; "" for nothing."""
    table = mounts.table()
    inside = [entry for entry in table if entry.target.startswith(f"{target}/")]
    above = [entry for entry in table if Path(entry.target) in target.parents]
    entry = mounts.at(target, table)
    hiding = [above[-1]] if entry and above and above[-1].id != entry.parent else []
    return next((one.target for one in (*reversed(inside), *hiding)), "")
