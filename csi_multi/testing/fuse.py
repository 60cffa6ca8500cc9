"""The boundary of a backend: count the calls that leave it, and at a chosen one die, fail or time out.

Three kinds of calls count: commands of the host it was given, functions its author names (Call), and
operating system calls on files below the directories its author names. The last are seen by an audit
hook, so that nothing in the backend has to be prepared for it.
"""

from __future__ import annotations

import enum
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csi_multi.host import CommandFailed, CommandTimedOut, Host, Result
from csi_multi.host.command import TIME_LIMIT

PATHS = frozenset(
    {"open", *(f"os.{name}" for name in ("mkdir", "rename", "remove", "rmdir", "truncate", "listdir", "scandir"))}
    | {f"os.{name}" for name in ("link", "symlink", "chmod", "chown", "utime", "setxattr", "getxattr", "removexattr")}
)
DESCRIPTORS = frozenset({"fcntl.ioctl", "fcntl.flock", "fcntl.fcntl"})


class Died(BaseException):
    """The process dies here. Nothing it does afterwards, cleaning up included, gets through the boundary."""


class Fault(enum.Enum):
    """What happens at the chosen call."""

    DEATH = "dies"  # instead of the call, so that call - 1 was the last one
    ERROR = "fails"  # and has done nothing
    TIMEOUT = "times out"  # and has done nothing
    LATE_TIMEOUT = "is done, but times out"

    @property
    def late(self) -> bool:
        return self is Fault.LATE_TIMEOUT


def _unreachable() -> Exception:
    return ConnectionError("the kit made this call fail")


def _silent() -> Exception:
    return TimeoutError("the kit made this call time out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function through which a backend reaches its storage, for example botocore's _make_api_call.

    `error` and `timeout` make the exceptions that the function raises when the storage fails or does
    not answer: the real library's own.
    """

    owner: Any  # a class, module or object
    name: str
    error: Callable[[], Exception] = _unreachable
    timeout: Callable[[], Exception] = _silent


@dataclass(slots=True)
class _Charge:
    """What is to happen, and what has."""

    at: int  # which call, from 1; 0: only count
    fault: Fault
    thread: int  # whose operating system calls count
    files: tuple[str, ...]
    calls: list[str] = field(default_factory=list)
    struck: bool = False
    guard: threading.Lock = field(default_factory=threading.Lock)

    def pass_through(self, what: str) -> bool:
        """Count a call; return whether the fault strikes at it. Raises Died, also ever after."""
        with self.guard:
            if self.struck and self.fault is Fault.DEATH:
                raise Died(what)
            self.calls.append(what)
            if len(self.calls) != self.at:
                return False
            self.struck = True
            if self.fault is Fault.DEATH:
                raise Died(what)
            return True


class Fuse:
    """All calls of one backend's boundary. Use one at a time: `with fuse.blown(3, Fault.DEATH): ...`"""

    def __init__(self, files: tuple[Path, ...] = ()) -> None:
        self._files = tuple(os.path.realpath(path) for path in files)
        self._charge: _Charge | None = None

    @property
    def calls(self) -> list[str]:
        """The calls of the current or last block, in words."""
        return list(self._last.calls)

    @contextmanager
    def blown(self, at: int, fault: Fault = Fault.DEATH) -> Iterator[None]:
        """Let the fault strike at this call (from 1) of the block. 0 counts only."""
        charge = _Charge(at, fault, threading.get_ident(), self._files)
        self._charge = self._last = charge
        if self._files:
            _watch(charge)
        try:
            yield
        finally:
            self._charge = None
            _unwatch(charge)

    @property
    def struck(self) -> bool:
        """Whether the last block came as far as the chosen call."""
        return self._last.struck

    def host(self, host: Host) -> Host:
        """Return a door to the machine whose commands count."""
        return _Door(host, self)

    @contextmanager
    def around(self, calls: tuple[Call, ...]) -> Iterator[None]:
        """Let the author's own functions count for the block."""
        with ExitStack() as stack:
            for call in calls:
                stack.enter_context(self._patched(call))
            yield

    @contextmanager
    def _patched(self, call: Call) -> Iterator[None]:
        own = vars(call.owner).get(call.name)
        real = getattr(call.owner, call.name)

        def counted(*args: Any, **words: Any) -> Any:
            return self.through(call.name, lambda: real(*args, **words), call.error, call.timeout)

        def counted_method(self_: Any, *args: Any, **words: Any) -> Any:
            return self.through(call.name, lambda: real(self_, *args, **words), call.error, call.timeout)

        setattr(call.owner, call.name, counted_method if isinstance(call.owner, type) else counted)
        try:
            yield
        finally:
            if own is None:
                delattr(call.owner, call.name)
            else:
                setattr(call.owner, call.name, own)

    def through(
        self, what: str, act: Callable[[], Any], error: Callable[[], Exception], timeout: Callable[[], Exception]
    ) -> Any:
        """Make a call through the boundary. Raises what the fault makes of it."""
        charge = self._charge
        if charge is None or not charge.pass_through(what):
            return act()
        if charge.fault.late:
            act()
        raise error() if charge.fault is Fault.ERROR else timeout()


class _Door:
    """A Host whose commands count."""

    def __init__(self, host: Host, fuse: Fuse) -> None:
        self._host = host
        self._fuse = fuse

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        def act() -> Result:
            return self._host.run(*argv, stdin=stdin, ok=ok, timeout=timeout)

        def failed() -> Exception:
            status = next(status for status in range(70, 80) if status not in ok)
            return CommandFailed(argv, Result(status, "", "the kit made this command fail"))

        return self._fuse.through(  # type: ignore[no-any-return]
            " ".join(argv), act, failed, lambda: CommandTimedOut(argv, timeout)
        )


# One hook for the life of the process: audit hooks cannot be removed.
_WATCHED: list[_Charge] = []
_hooked = False


def _watch(charge: _Charge) -> None:
    global _hooked
    _WATCHED.append(charge)
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True


def _unwatch(charge: _Charge) -> None:
    if charge in _WATCHED:
        _WATCHED.remove(charge)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _WATCHED or (event not in PATHS and event not in DESCRIPTORS):
        return
    for charge in _WATCHED:
        if charge.thread == threading.get_ident() and (event in DESCRIPTORS or _below(args[0], charge.files)):
            what = f"{event} {args[0]}"
            if charge.pass_through(what):
                raise OSError(errno.EIO, "the kit made this call fail", str(args[0]))


def _below(path: Any, directories: tuple[str, ...]) -> bool:
    if isinstance(path, int):
        return True
    try:
        text = os.fsdecode(path)
    except TypeError:
        return False
    return not text.startswith("/") or any(text == one or text.startswith(f"{one}/") for one in directories)
