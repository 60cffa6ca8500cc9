"""File handles: the kernel's names of files, which do not depend on paths and mounts (open_by_handle_at(2))."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import NamedTuple

from .client import DIRECTORY_FLAGS

_AT_EMPTY_PATH = 0x1000
_MAX_HANDLE = 128  # bytes: MAX_HANDLE_SZ
_libc = ctypes.CDLL(None, use_errno=True)


class FileHandle(NamedTuple):
    kind: int
    data: str  # in hexadecimal digits


class _Handle(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * _MAX_HANDLE))


def handle_of(descriptor: int) -> FileHandle | None:
    """Return the handle of an open file; None where the filesystem has no handles. Raises OSError."""
    handle = _Handle(length=_MAX_HANDLE)
    mount = ctypes.c_int()
    try:
        _check(_libc.name_to_handle_at(descriptor, b"", ctypes.byref(handle), ctypes.byref(mount), _AT_EMPTY_PATH))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return None
    return FileHandle(handle.kind, bytes(handle.data[: handle.length]).hex())


def open_directory(handle: FileHandle, descriptor: int) -> int:
    """Open a directory on the filesystem of an open file, wherever it is and whatever is mounted there.

    Raises OSError: ESTALE when it does not exist any more, EPERM for a process without CAP_DAC_READ_SEARCH.
    """
    data = bytes.fromhex(handle.data)
    if len(data) > _MAX_HANDLE:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    raw = _Handle(len(data), handle.kind, (ctypes.c_ubyte * _MAX_HANDLE)(*data))
    return _check(_libc.open_by_handle_at(descriptor, ctypes.byref(raw), DIRECTORY_FLAGS))


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
