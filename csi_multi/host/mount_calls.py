"""The kernel's calls for mounts on open descriptors, and for detached mounts, which are in no mount table.

mount(8) takes only paths, and a path could lead elsewhere by the time it is used. Nothing here waits for a device,
except `sync_filesystem`, `mount_detached` and `unmount`, which may never return.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from .command import wait_for_starts

# The same on all architectures: Linux 5.2, and 5.12 for mount_setattr.
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 428, 429, 430, 431, 432, 442
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_FROM_DESCRIPTOR_TO_DESCRIPTOR = 0x04 | 0x40  # MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH
_ALL_ATIME = 0x70  # MOUNT_ATTR__ATIME
_MS_REMOUNT, _MS_BIND = 32, 4096
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_MESSAGE_BYTES = 8192
_CLOSE_ON_EXEC = 1  # FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6  # FSCONFIG_*
# Of a mount that only the driver uses: the contents, a tenant's, get no effect on the node.
DRIVER_ONLY = ("nosuid", "nodev", "noexec")
# flag -> (MOUNT_ATTR_* of mount_setattr, MS_* of mount)
_FLAGS: Mapping[str, tuple[int, int]] = {
    "ro": (0x1, 0x1),
    "nosuid": (0x2, 0x2),
    "nodev": (0x4, 0x4),
    "noexec": (0x8, 0x8),
    "nodiratime": (0x80, 0x800),
    "nosymfollow": (0x200000, 0x100),
    "relatime": (0x0, 0x200000),
    "noatime": (0x10, 0x400),
    "strictatime": (0x20, 0x1000000),
}
_ALL = sum(attribute for attribute, _ in _FLAGS.values()) | _ALL_ATIME
_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def sync_filesystem(descriptor: int) -> None:
    """Write out the filesystem of an open file or directory (syncfs(2)). Raises OSError."""
    if _libc.syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def bind(source: int, target: int, flags: Collection[str] | None = None) -> None:
    """Bind what a descriptor shows on what another one shows, with exactly these flags (None: those of the source).

    The descriptors may be opened with O_PATH. Raises OSError.
    """
    try:
        tree = _clone(source, flags)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # before Linux 5.12, or in a container that forbids it
            raise
        _bind_by_path(source, target, flags)
        return
    try:
        attach(tree, target)
    finally:
        os.close(tree)


def attach(mount: int, target: int) -> None:
    """Mount what is mounted nowhere yet on what a descriptor shows. Raises OSError."""
    _call(_MOVE_MOUNT, mount, b"", target, b"", _FROM_DESCRIPTOR_TO_DESCRIPTOR)


def detach(root: int) -> None:
    """Unmount the mount whose root this descriptor shows, wherever it is. Raises OSError."""
    _check(_libc.umount2(os.fsencode(_link(root)), _MNT_DETACH))


def unmount(parent: int, name: str) -> None:
    """Unmount what is mounted at this name in the directory that a descriptor shows, and write everything out.

    It waits for the device without a limit. Raises OSError: EBUSY while anything in it is open.
    """
    path = os.fsencode(f"{_link(parent)}/{name}")
    try:
        _check(_libc.umount2(path, _UMOUNT_NOFOLLOW))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        wait_for_starts()  # a process that another thread is starting has copies of descriptors that are closed here
        _check(_libc.umount2(path, _UMOUNT_NOFOLLOW))


def mount_detached(fs_type: str, source: str, options: Collection[str], flags: Collection[str] = DRIVER_ONLY) -> int:
    """Mount a filesystem in no mount table; return a descriptor, which keeps it until it is attached.

    `options` are the filesystem's own; `flags` with "ro" make the filesystem read-only, too. It waits for the device
    without a limit. Raises OSError with what the kernel says about it.
    """
    context = _call(_FSOPEN, fs_type.encode(), _CLOSE_ON_EXEC)
    try:
        _call(_FSCONFIG, context, _SET_STRING, b"source", os.fsencode(source), 0)
        for option in (*options, *(["ro"] if "ro" in flags else [])):
            key, _, value = option.partition("=")
            _call(_FSCONFIG, context, _SET_STRING if value else _SET_FLAG, key.encode(), value.encode() or None, 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, sum(_FLAGS[flag][0] for flag in flags))
    except OSError as error:
        raise OSError(error.errno, "; ".join([os.strerror(error.errno or 0), *_messages(context)])) from None
    finally:
        os.close(context)


def _messages(context: int) -> list[str]:
    """Return what the kernel has noted in the context of a new mount: one message for each read."""
    found = []
    with contextlib.suppress(OSError):  # ENODATA: no more
        while message := os.read(context, _MESSAGE_BYTES):
            found.append(message.decode(errors="replace").partition(" ")[2].strip())  # after "e", "w" or "i"
    return found


def _clone(source: int, flags: Collection[str] | None) -> int:
    """Return a descriptor of a new mount that is nowhere yet."""
    tree = _call(_OPEN_TREE, source, b"", _AT_EMPTY_PATH | _OPEN_TREE_CLONE | os.O_CLOEXEC)
    if flags is None:
        return tree
    wanted = sum(_FLAGS[flag][0] for flag in flags)
    attributes = _MountAttributes(attr_set=wanted, attr_clr=_ALL & ~wanted | _ALL_ATIME)
    try:
        size = ctypes.sizeof(attributes)
        _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), ctypes.c_size_t(size))
    except OSError:
        os.close(tree)
        raise
    return tree


def _bind_by_path(source: int, target: int, flags: Collection[str] | None) -> None:
    """Do the same with mount(2), by the paths of the descriptors in /proc, which lead to nothing else."""
    _mount(_link(source), _link(target), _MS_BIND)
    if flags is None:
        return
    root = os.open(Path(_link(target)).readlink(), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _mount("none", _link(root), _MS_BIND | _MS_REMOUNT | sum(_FLAGS[flag][1] for flag in flags))
    except OSError:
        detach(root)
        raise
    finally:
        os.close(root)


def _link(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _mount(source: str, target: str, flags: int) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None))


def _call(number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments))


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
