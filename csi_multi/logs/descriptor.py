"""Writing to a descriptor without waiting for its reader, and without changing it for others who have it."""

from __future__ import annotations

import functools
import os
import select
import socket
import stat
import threading
from collections.abc import Callable

Writer = Callable[[bytes], int]  # writes what fits now; returns how many bytes, 0: none


def nonblocking_writer(descriptor: int) -> Writer:
    """Return a function that writes and never waits.

    A terminal or pipe is opened again, because O_NONBLOCK holds for all processes that share a descriptor. It stays
    open: another thread may be writing at any time, and its number must not become that of another file.
    """
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return functools.partial(os.write, descriptor)
    if stat.S_ISSOCK(status.st_mode):
        return _socket_writer(descriptor)
    try:
        return _quiet(functools.partial(os.write, _opened_again(descriptor, status.st_dev, status.st_ino)))
    except OSError:  # for example a pipe of another user
        return _polling_writer(descriptor)


def wait_writable(descriptor: int, seconds: float) -> bool:
    """Return whether something can be written before the time is over; an error can be met by writing, too."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(seconds * 1000))


@functools.cache
def _opened_again(descriptor: int, _device: int, _inode: int) -> int:
    return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)


def _quiet(write: Writer) -> Writer:
    def attempt(data: bytes) -> int:
        try:
            return write(data)
        except BlockingIOError:
            return 0

    return attempt


def _socket_writer(descriptor: int) -> Writer:
    def send(data: bytes) -> int:
        peer = socket.socket(fileno=descriptor)
        try:
            return peer.send(data, socket.MSG_DONTWAIT)
        finally:
            peer.detach()

    return _quiet(send)


def _polling_writer(descriptor: int) -> Writer:
    """A pipe that is writable has space for PIPE_BUF bytes; the lock keeps it for the thread that asked."""
    turn = threading.Lock()

    def attempt(data: bytes) -> int:
        with turn:
            return os.write(descriptor, data[: select.PIPE_BUF]) if wait_writable(descriptor, 0) else 0

    return attempt
