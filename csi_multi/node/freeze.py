"""Freezing the mounted filesystem of a device while a backend cuts a snapshot, and never leaving it frozen.

Each freeze has a thread that ends it when its time is over or the driver stops, and a note, by which the next process
ends it after the death of this one. The mount point is kept open during the freeze, so that it cannot be unmounted: a
filesystem that is frozen and mounted nowhere keeps its device busy, and cannot be reached to thaw it.

The kernel is called directly, on a descriptor that was checked. A command could outlive this process, or find another
filesystem at the path by the time it starts, and freeze that.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from ..contract.errors import FailedPrecondition, StorageError, Unavailable
from ..contract.setting import FREEZE_SECONDS
from ..host import mount_calls, sysfs
from . import device_filesystems, freeze_notes, frozen_leftovers, thaw
from .freeze_notes import FreezeNote

log = logging.getLogger(__name__)

FIFREEZE = 0xC0045877  # linux/fs.h
END_LIMIT = 5.0  # seconds to thaw everything when the driver stops
_stopping = threading.Event()
_running: set[_Freeze] = set()
_held: ContextVar[frozenset[Path]] = ContextVar("HELD", default=frozenset())  # devices that this thread has frozen


@contextlib.contextmanager
def held(device: Path) -> Iterator[None]:
    """Let `frozen` do nothing for this device and thread during the block: the caller keeps it frozen."""
    token = _held.set(_held.get() | {device.resolve()})
    try:
        yield
    finally:
        _held.reset(token)


@contextlib.contextmanager
def frozen(device: Path, seconds: float = FREEZE_SECONDS) -> Iterator[None]:
    """Freeze the filesystems of the device on this node for the block; see contract.Setting.frozen."""
    device = device.resolve()
    if device in _held.get():
        yield
        return
    freezes: list[_Freeze] = []
    with contextlib.ExitStack() as undo:
        if filesystems := device_filesystems.find(device):
            note = undo.enter_context(freeze_notes.kept(device, sysfs.number_of(device)))
            if note.unthawed:
                frozen_leftovers.thaw_mounted(filesystems)
                note.unthawed.clear()
        for mount in filesystems:
            descriptor = undo.enter_context(device_filesystems.opened(mount))
            freezes.append(_Freeze(descriptor, mount.target, seconds, note))
            undo.callback(freezes[-1].end)  # first, because any error after the kernel's call leaves it frozen
            freezes[-1].begin()
        yield
    for one in freezes:
        if one.given_up:
            raise Unavailable(f"{one.target} was thawed {one.given_up}, before its copy was complete; try again")


def end_all(limit: float = END_LIMIT) -> None:
    """Thaw what this process has frozen, and let it freeze nothing more: its blocks fail. For a driver that stops."""
    _stopping.set()
    running = _running.copy()
    for one in running:
        one.wake.set()
    end = time.monotonic() + limit
    for one in running:
        one.join(max(0.0, end - time.monotonic()))


class _Freeze:
    """A frozen filesystem, and the thread that thaws it when its time is over."""

    def __init__(self, descriptor: int, target: str, seconds: float, note: FreezeNote) -> None:
        self.given_up = ""  # why it was thawed before the end
        self.target = target
        self.wake = threading.Event()
        self._descriptor = descriptor
        self._note = note
        self._ended = False
        self._changing = threading.Lock()  # held while the filesystem is frozen or thawed
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._thread = threading.Thread(target=self._await_end, name="freeze", daemon=True)

    def begin(self) -> None:
        """Freeze. Raises FailedPrecondition, Unavailable."""
        sync_filesystem(self._descriptor, self.target)
        _running.add(self)
        if _stopping.is_set():
            raise Unavailable(f"{self.target} is not frozen for a copy, because the driver stops; try again")
        with self._changing:  # also while the thread starts: if its time is over already, it waits for the freeze
            try:
                self._thread.start()
            except RuntimeError as error:
                raise Unavailable(
                    f"no thread could be started to end a freeze of {self.target}: {error}; try again"
                ) from None
            self._note.unthawed.add(self.target)
            try:
                thaw.call_kernel(self._descriptor, FIFREEZE)
            except OSError as error:  # nothing was frozen here: if it is frozen, who froze it must thaw it
                self._note.unthawed.discard(self.target)
                raise _refusal(self.target, error) from error

    def end(self) -> None:
        """Thaw, unless that was done before. Raises MayBeFrozen."""
        try:
            with self._changing:
                self._ended = True  # from now on the descriptor may be closed
                self._thaw()
        finally:
            _running.discard(self)
            self.wake.set()

    def join(self, seconds: float) -> None:
        """Wait until the thread has thawed it."""
        with contextlib.suppress(RuntimeError):  # it was not started
            self._thread.join(seconds)

    def _await_end(self) -> None:
        stopping = self.wake.wait(self._seconds)
        with self._changing:
            if self._ended:
                return
            self.given_up = "because the driver stops" if stopping else f"after {self._seconds:g} s"
            log.error("%s is thawed %s; its copy is given up", self.target, self.given_up)
            with contextlib.suppress(StorageError):  # logged; `end` tries again
                self._thaw()

    def _thaw(self) -> None:
        if self.target not in self._note.unthawed:
            return
        if not thaw.thaw(self._descriptor, self.target) and not self.given_up:
            self.given_up = "by another program"
        self._note.unthawed.discard(self.target)


def sync_filesystem(descriptor: int, target: str) -> None:
    """Write out the filesystem of an open directory, while it can still be written to. Raises Unavailable."""
    try:
        mount_calls.sync_filesystem(descriptor)
    except OSError as error:
        raise Unavailable(
            f"{target} could not be written out for a consistent copy: {error.strerror}; check its disk"
        ) from error


def _refusal(target: str, error: OSError) -> StorageError:
    if error.errno == errno.EOPNOTSUPP:
        return FailedPrecondition(
            f"{target} cannot be frozen for a consistent copy: its filesystem does not support that; "
            "unpublish the volume first"
        )
    return Unavailable(
        f"{target} could not be frozen for a consistent copy: {error.strerror}; if another program froze it, "
        f"thaw it with: fsfreeze --unfreeze {target}"
    )
