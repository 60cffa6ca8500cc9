"""The Unix socket the driver listens on: where it is, and whose it is.

CSI_ENDPOINT names it (csi-spec 2.5). A stale socket is replaced, a live one is refused, and no other
file ever appears beside it: the moment of taking it over is guarded by a lock on its directory.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATH_LIMIT = 107  # bytes in sockaddr_un


class EndpointError(Exception):
    """The endpoint cannot be used; the text says why."""


def socket_path(endpoint: str | None) -> Path:
    """Return the socket's path. Raises EndpointError."""
    if not endpoint:
        raise EndpointError("CSI_ENDPOINT is not set; for example CSI_ENDPOINT=unix:///run/csi-multi/csi.sock")
    scheme, colon, rest = endpoint.partition(":")
    path = rest.removeprefix("//")
    if scheme != "unix" or not colon or not path.startswith("/") or not path.endswith(".sock"):
        raise EndpointError(f"CSI_ENDPOINT {endpoint!r}: expected unix:///absolute/path.sock")
    if len(path.encode()) > PATH_LIMIT:
        raise EndpointError(f"CSI_ENDPOINT {endpoint!r}: the path is longer than {PATH_LIMIT} bytes")
    return Path(path)


@contextmanager
def claim_path(path: Path) -> Iterator[None]:
    """Hold the right to bind the path: nobody listens there, and nobody else is starting to.

    Raises EndpointError for a live socket, or for anything there that is not a socket.
    """
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EndpointError(f"the socket's directory {path.parent} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        _refuse_live(path)
        yield
    finally:
        os.close(directory)


def inode(path: Path) -> tuple[int, int]:
    """Return what tells this socket from a successor's at the same path."""
    status = path.lstat()
    return status.st_dev, status.st_ino


def remove(path: Path, own: tuple[int, int]) -> None:
    """Remove our own socket if it is still there; a successor's is left alone."""
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
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)  # stale: its process is gone
            return
        except OSError:
            pass  # busy or slow to answer: somebody is there
    raise EndpointError(f"another driver is listening on {path}; stop it first or choose another path")
