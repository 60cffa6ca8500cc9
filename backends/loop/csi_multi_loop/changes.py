"""Which names of a directory have changed since the last look, as the kernel reports it (inotify(7)).

The kernel queues an event before the system call that makes the change returns, whichever process makes it. So
whoever looks after a change, or after the release of a lock below which it was made, finds the event, and neither
clocks nor the resolution of time stamps matter. A change inside a subdirectory is no event, but a new time stamp of the
subdirectory is one: who makes a change that counts sets it.

Everything may have changed (None) at the first look, when another directory is in the place, when the queue was full,
and always where not all changes pass through this kernel or it gives no queue: then the caller reads the directory.
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from csi_multi.host.loopdev import KNOWN_FILESYSTEMS, filesystem_type

log = logging.getLogger(__name__)

_ATTRIBUTES, _MOVED_FROM, _MOVED_TO, _CREATED, _DELETED = 0x4, 0x40, 0x80, 0x100, 0x200
_FULL, _GONE = 0x4000, 0x8000  # IN_Q_OVERFLOW, IN_IGNORED
_MASK = _ATTRIBUTES | _MOVED_FROM | _MOVED_TO | _CREATED | _DELETED | 0x01000000  # IN_ONLYDIR
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_BUFFER = 2**16  # bytes per read
_libc = ctypes.CDLL(None, use_errno=True)


class Changes:
    """One queue of the kernel, for all directories that one backend looks at."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # also of what its subscriptions have noted
        self._queue = -1  # its descriptor
        self._close: Callable[[], object] = lambda: None
        self._warned = False
        self._subscriptions: dict[int, weakref.WeakSet[Subscription]] = {}  # by the kernel's number of the watch

    def close(self) -> None:
        """Give the queue back. A later look opens another one."""
        with self.lock:
            self._close()
            self._queue = -1
            for watch in list(self._subscriptions):
                self._lose(watch)

    def watch(self, directory: int, subscription: Subscription) -> int | None:
        """Tell a subscription what changes in an open directory. None: that cannot be known."""
        with self.lock:
            try:
                path = f"/proc/self/fd/{directory}"
                if filesystem_type(Path(path)) not in KNOWN_FILESYSTEMS:
                    return None  # other nodes may write to it, or a server
                if self._queue < 0:
                    self._queue = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
                    self._close = weakref.finalize(self, os.close, self._queue)
                watch = _checked(_libc.inotify_add_watch(self._queue, path.encode(), _MASK))
            except OSError as error:
                if not self._warned:
                    self._warned = True
                    log.warning(
                        "the kernel does not report changes of directories: %s; every creation and listing reads them "
                        "whole until it does; raise the sysctl fs.inotify.max_user_instances or max_user_watches",
                        error.strerror,
                    )
                return None
            self._subscriptions.setdefault(watch, weakref.WeakSet()).add(subscription)
            return watch

    def unwatch(self, watch: int, subscription: Subscription) -> None:
        with self.lock:
            left = self._subscriptions.get(watch)
            if left is None:
                return
            left.discard(subscription)
            if not left:
                del self._subscriptions[watch]
                _libc.inotify_rm_watch(self._queue, watch)

    def collect(self) -> None:
        """Hand out what the kernel has queued."""
        with self.lock:
            while self._queue >= 0:
                try:
                    data = os.read(self._queue, _BUFFER)
                except BlockingIOError:
                    return
                self._hand_out(data)

    def _hand_out(self, data: bytes) -> None:
        place = 0
        while place < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, place)
            place += _EVENT.size + length
            name = os.fsdecode(data[place - length : place].rstrip(b"\0"))
            if mask & _FULL:
                for each in list(self._subscriptions):
                    for one in self._subscriptions[each]:
                        one.note_loss()
            elif mask & _GONE:  # the directory was removed, or its filesystem unmounted
                self._lose(watch)
            elif name:
                for one in self._subscriptions.get(watch, ()):
                    one.note(name, in_place=bool(mask & _ATTRIBUTES))

    def _lose(self, watch: int) -> None:
        for one in self._subscriptions.pop(watch, ()):
            one.note_loss(watch_ended=True)


class Subscription:
    """What changes in one directory, for one reader, which calls it from one thread at a time."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._directory: tuple[int, int] | None = None
        self._watch: int | None = None
        self._names: dict[str, bool] = {}
        self._lost = True

    def take(self, directory: int) -> dict[str, bool] | None:
        """Return the names in an open directory that have changed since the last call; True: changed in place.

        None: any may have changed; what changes after this call is in the answer of the next one.
        """
        status = os.fstat(directory)
        present = (status.st_dev, status.st_ino)
        self._changes.collect()
        if self._watch is None or self._directory != present:
            self.close()
            self._directory = present
            self._watch = self._changes.watch(directory, self)
        with self._changes.lock:
            names, self._names = self._names, {}
            lost, self._lost = self._lost, self._watch is None
        return None if lost else names

    def forget(self) -> None:
        """Let the next take() be None, because its caller could not use an answer."""
        self._lost = True

    def close(self) -> None:
        if self._watch is not None:
            self._changes.unwatch(self._watch, self)
        self._watch, self._lost = None, True

    def note(self, name: str, *, in_place: bool) -> None:
        """As note_loss(), called with the lock."""
        self._names[name] = self._names.get(name, False) or in_place

    def note_loss(self, *, watch_ended: bool = False) -> None:
        self._lost = True
        if watch_ended:
            self._watch = None


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
