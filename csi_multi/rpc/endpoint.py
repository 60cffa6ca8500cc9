"""The Unix socket that the driver listens on: its path and its owner.

CSI_ENDPOINT names it (csi-spec 2.5). A stale socket is replaced, and a live one is refused. A lock on the directory
protects the replacement, so no lock file is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from ..host import exclusive

PATH_LIMIT = 107  # bytes in sockaddr_un
CLAIM_SECONDS = 30.0  # for another driver that starts in the same directory, which takes at most a few


class EndpointError(Exception):
    """The endpoint cannot be used; the text says why."""


def socket_path(endpoint: str | None) -> Path:
    """Return the socket's path. Raises EndpointError."""
    if not endpoint:
        raise EndpointError("CSI_ENDPOINT is not set; set it for example to unix:///run/csi-multi/csi.sock")
    scheme, colon, rest = endpoint.partition(":")
    path = rest.removeprefix("//")
    if scheme != "unix" or not colon or not path.startswith("/") or not path.endswith(".sock"):
        raise EndpointError(f"CSI_ENDPOINT {endpoint!r} is not of the form unix:///absolute/path.sock")
    if len(path.encode()) > PATH_LIMIT:
        raise EndpointError(
            f"CSI_ENDPOINT {endpoint!r}: the path is longer than {PATH_LIMIT} bytes, the limit of Unix sockets"
        )
    return Path(path)


@contextlib.contextmanager
def claim_path(path: Path) -> Iterator[None]:
    """Reserve the path for binding: no process listens there, and no other driver starts to.

    Raises EndpointError for a live socket, for a file that is not a socket, and for a directory that another process
    keeps locked for CLAIM_SECONDS.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EndpointError(f"the socket's directory {path.parent} cannot be used: {error.strerror}") from None
    try:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(exclusive.locked(directory, fcntl.LOCK_EX, wait=CLAIM_SECONDS))
            except BlockingIOError:
                raise EndpointError(
                    f"the socket's directory {path.parent} has been locked for {CLAIM_SECONDS:g} seconds, as by "
                    f"another driver that starts there; end the process that holds it ('fuser -v {path.parent}' "
                    "names it), or choose another directory"
                ) from None
            _refuse_live(path)
            yield
    finally:
        os.close(directory)


@contextlib.contextmanager
def no_rights_for_others() -> Iterator[None]:
    """Let sockets that are bound meanwhile be usable by owner and group at most: who connects acts as the driver."""
    before = os.umask(0o007)
    os.umask(before | 0o007)
    try:
        yield
    finally:
        os.umask(before)


def inode(path: Path) -> tuple[int, int]:
    """Return what distinguishes this socket from another one at the same path."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def remove(path: Path, own: tuple[int, int]) -> None:
    """Remove our own socket if it is still there, but not one of a later driver."""
    try:
        if inode(path) == own:
            path.unlink()
    except FileNotFoundError:
        pass


def _refuse_live(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise EndpointError(f"{path} exists and is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
            alive = not _has_exited(probe)
        except (ConnectionRefusedError, FileNotFoundError):
            alive = False
        except OSError:
            alive = True  # busy or slow to answer, so a process listens there
    if not alive:
        path.unlink(missing_ok=True)
        return
    raise EndpointError(f"another driver is listening on {path}; stop it first or choose another path")


def _has_exited(connection: socket.socket) -> bool:
    """Return whether the process at the other end has exited, but for a thread that the kernel does not let go.

    Such a thread waits for a device that hangs, and keeps the process's descriptors open until the device answers.
    """
    peer, *_ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        state = Path(f"/proc/{peer}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # of another PID namespace
        return False
    return state in "ZX"
