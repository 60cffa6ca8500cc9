"""The plan of one fault or pause: at which call of a backend's boundary it happens, and the calls made so far.

An audit hook sees the operating system calls on files, so the backend needs no preparation. It sees the calls
that Python announces (https://docs.python.org/3/library/audit_events.html), which are not stat, read, write and
fsync. A call counts if its path or descriptor is below the storage's directories. A call with a relative path
counts only in the thread that entered the block.
"""

from __future__ import annotations

import enum
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

PATHS = frozenset(
    {"open", *(f"os.{name}" for name in ("mkdir", "rename", "remove", "rmdir", "truncate", "listdir", "scandir"))}
    | {f"os.{name}" for name in ("link", "symlink", "chmod", "chown", "utime", "setxattr", "getxattr", "removexattr")}
)
TWO_PATHS = frozenset({"os.rename", "os.link", "os.symlink"})
DESCRIPTORS = frozenset({"fcntl.ioctl", "fcntl.flock", "fcntl.fcntl", "fcntl.lockf"})


class ProcessDied(BaseException):
    """The simulated death of the process. No later call gets through the boundary, those of clean-ups included."""


class Fault(enum.Enum):
    """The fault that happens at the chosen call."""

    DEATH = "dies"  # instead of the call: the call before it was the last one
    TORN = "dies when it has emptied the file"  # at a call that opens a file to write it anew, before it is written
    ERROR = "fails"  # without an effect
    TIMEOUT = "times out"  # without an effect
    LATE_TIMEOUT = "is done, but times out"
    NO_SOCKET = "fails because its socket is missing"  # only where a connection can be refused; without an effect
    PAUSE = "waits"  # for FaultPlan.meanwhile to end: then the call is made

    @property
    def deadly(self) -> bool:
        return self in (Fault.DEATH, Fault.TORN)

    @property
    def late(self) -> bool:
        return self is Fault.LATE_TIMEOUT

    @property
    def no_answer(self) -> bool:
        """Whether the call gets no answer. Calls on files of this machine always get one."""
        return self in (Fault.TIMEOUT, Fault.LATE_TIMEOUT, Fault.NO_SOCKET)


@dataclass(slots=True)
class FaultPlan:
    """The calls of one block, and the fault at one of them."""

    at: int  # number of the call, from 1; 0: only count the calls
    fault: Fault
    lasting: bool = False  # whether the fault happens at all later calls too
    files: tuple[str, ...] = ()
    thread: int = field(default_factory=threading.get_ident)
    calls: list[str] = field(default_factory=list)
    can_time_out: list[bool] = field(default_factory=list)  # of each call
    empties: list[bool] = field(default_factory=list)  # whether the call opens a file to write it anew
    reached: bool = False  # whether the block made that many calls
    happened: bool = False  # whether the fault happened: a call on a file cannot time out
    meanwhile: Callable[[], None] = lambda: None  # what runs before the call that is paused
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def dead(self) -> bool:
        return self.happened and self.fault.deadly

    def record(self, what: str, *, can_time_out: bool = True, empty: Callable[[], None] | None = None) -> bool:
        """Record a call; return whether the fault happens at it. Raises ProcessDied at a death and after it.

        `empty`: what opens the file as the call does, for a call that opens one to write it anew.
        """
        with self.lock:
            if self.dead:
                raise ProcessDied(what)
            self.calls.append(what)
            self.can_time_out.append(can_time_out)
            self.empties.append(empty is not None)
            number = len(self.calls)
            if not self.at or number < self.at or (number > self.at and not self.lasting):
                return False
            self.reached = True
            if (self.fault.no_answer and not can_time_out) or (self.fault is Fault.TORN and not empty):
                return False
            self.happened = True
            if self.fault is Fault.TORN and empty:
                empty()
            if self.dead:
                raise ProcessDied(what)
        if self.fault is Fault.PAUSE:
            self.meanwhile()
            return False
        return True


# One hook for the lifetime of the process: audit hooks cannot be removed.
_WATCHED: list[FaultPlan] = []
_hooked = False
_unrecorded = threading.local()


@contextmanager
def watch_files(plan: FaultPlan) -> Iterator[None]:
    """Record the calls on the plan's files during the block."""
    global _hooked
    if not plan.files:
        yield
        return
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    _WATCHED.append(plan)
    try:
        yield
    finally:
        _WATCHED[:] = [one for one in _WATCHED if one is not plan]


@contextmanager
def not_recorded() -> Iterator[None]:
    """Record no calls of this thread during the block: they belong to a call that was recorded."""
    before = getattr(_unrecorded, "active", False)
    _unrecorded.active = True
    try:
        yield
    finally:
        _unrecorded.active = before


def path_prefixes(directories: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the prefixes of paths below the directories: as given, and with symbolic links resolved."""
    return tuple({*map(os.path.abspath, directories), *map(os.path.realpath, directories)})


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _WATCHED or (event not in PATHS and event not in DESCRIPTORS) or getattr(_unrecorded, "active", False):
        return
    named = () if event in DESCRIPTORS else args[: 2 if event in TWO_PATHS else 1]
    texts = [_text(one) for one in (named or args[:1])]
    vague = not all(text.startswith("/") for text in texts)
    empty = partial(_empty, args[0], args[2]) if event == "open" and _empties(args) else None
    for plan in list(_WATCHED):
        own = plan.thread == threading.get_ident()
        counts = (vague and own) or any(_below(text, plan.files) for text in texts)
        if counts and plan.record(" ".join([event, *texts]), can_time_out=False, empty=empty):
            raise OSError(errno.EIO, "the kit made this call fail", texts[0])


def _empties(args: tuple[Any, ...]) -> bool:
    return isinstance(args[2], int) and bool(args[2] & os.O_TRUNC)


def _empty(path: Any, flags: int) -> None:
    """Make the call, and nothing after it."""
    with not_recorded():
        os.close(os.open(path, flags | os.O_CLOEXEC, 0o600))


def _text(path: Any) -> str:
    """Return the path of a file or of a descriptor's file; "/" for what has none."""
    try:
        return os.fsdecode(path)
    except TypeError:
        with suppress(OSError):
            return os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115 - an audit hook runs often
        return "/"


def _below(text: str, directories: tuple[str, ...]) -> bool:
    return any(text == one or text.startswith(f"{one}/") for one in directories)
