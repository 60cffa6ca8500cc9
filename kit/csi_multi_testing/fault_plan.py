"""The plan of one fault: at which call of a backend's boundary it happens, and the calls made so far.

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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
    ERROR = "fails"  # without an effect
    TIMEOUT = "times out"  # without an effect
    LATE_TIMEOUT = "is done, but times out"

    @property
    def late(self) -> bool:
        return self is Fault.LATE_TIMEOUT

    @property
    def no_answer(self) -> bool:
        """Whether the call gets no answer. Calls on files of this machine always get one."""
        return self in (Fault.TIMEOUT, Fault.LATE_TIMEOUT)


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
    reached: bool = False  # whether the block made that many calls
    happened: bool = False  # whether the fault happened: a call on a file cannot time out
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def dead(self) -> bool:
        return self.happened and self.fault is Fault.DEATH

    def record(self, what: str, *, can_time_out: bool = True) -> bool:
        """Record a call; return whether the fault happens at it. Raises ProcessDied at a death and after it."""
        with self.lock:
            if self.dead:
                raise ProcessDied(what)
            self.calls.append(what)
            self.can_time_out.append(can_time_out)
            number = len(self.calls)
            if not self.at or number < self.at or (number > self.at and not self.lasting):
                return False
            self.reached = True
            if self.fault.no_answer and not can_time_out:
                return False
            self.happened = True
            if self.fault is Fault.DEATH:
                raise ProcessDied(what)
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
    for plan in list(_WATCHED):
        own = plan.thread == threading.get_ident()
        counts = (vague and own) or any(_below(text, plan.files) for text in texts)
        if counts and plan.record(" ".join([event, *texts]), can_time_out=False):
            raise OSError(errno.EIO, "the kit made this call fail", texts[0])


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
