"""The boundary of a backend: record the calls that cross it; inject a death, failure, timeout or pause at one of them.

Three kinds of calls are recorded: commands and kernel calls of the backend's host, functions that its author names
(Call), and operating system calls on files below the directories that its author names (fault_plan.py).
"""

from __future__ import annotations

import errno
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from csi_multi.contract import TIME_LIMIT, CommandFailed, CommandTimedOut, Host, Result

from .fault_plan import Fault, FaultPlan, ProcessDied, not_recorded, path_prefixes, watch_files

__all__ = ["FILESYSTEM_CALLS", "Call", "Fault", "FaultInjector", "ProcessDied"]

T = TypeVar("T")

UNEXPECTED = range(70, 80)  # exit statuses that no program uses for an answer


def _unreachable() -> Exception:
    return ConnectionError("the kit made this call fail")


def _silent() -> Exception:
    return TimeoutError("the kit made this call time out")


def _connects(error: Callable[[], Exception]) -> bool:
    """Whether an author says that a call fails as a connection does: one to a Unix socket can find no file, too."""
    return error is not _unreachable and isinstance(error(), ConnectionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function through which a backend reaches its storage, for example botocore's _make_api_call.

    `error` and `timeout` return the exceptions that the real library raises when the storage fails or does not
    answer. `owner` is where Python looks the function up at the call: the module that imported a function, or the
    class that defines a method. `describe` makes the text of a call from its
    arguments (those of a method without self), for Storage.read_only_calls and for the reports; default: the name.
    """

    owner: Any  # a class, module or object
    name: str
    describe: Callable[..., str] | None = None
    error: Callable[[], Exception] = _unreachable
    timeout: Callable[[], Exception] = _silent


def _broken() -> Exception:
    return OSError(errno.EIO, "the kit made this call fail")


def _too_slow() -> Exception:
    return OSError(errno.ETIMEDOUT, "the kit made this call time out")


# The space of a filesystem: recorded only where it is the subject, because many backends ask for it at every step.
FILESYSTEM_CALLS = tuple(
    Call(owner=os, name=name, error=_broken, timeout=_too_slow) for name in ("statvfs", "fstatvfs")
)


class FaultInjector:
    """Records the calls of one backend's boundary and injects faults: `with injector.inject(3, Fault.DEATH): ...`"""

    def __init__(self, files: tuple[Path, ...] = ()) -> None:
        self._files = path_prefixes(files)
        self._plan: FaultPlan | None = None
        self._last = FaultPlan(0, Fault.DEATH)
        self._deaths = 0  # number of simulated processes that died
        self._called: set[tuple[int, str]] = set()  # the author's functions that were called: id of the owner, name
        self._waiting: set[int] = set()  # the threads whose calls the storage has not answered yet

    @property
    def process(self) -> int:
        """The number of the present process, from 0: the next one after each death."""
        return self._deaths

    @property
    def calls(self) -> list[str]:
        """The calls of the current or last block, as text."""
        return list(self._last.calls)

    @property
    def can_time_out(self) -> list[bool]:
        """Whether each of these calls can time out: calls on files of this machine cannot."""
        return list(self._last.can_time_out)

    @property
    def empties(self) -> list[bool]:
        """Whether each of these calls opens a file to write it anew."""
        return list(self._last.empties)

    @property
    def reached(self) -> bool:
        """Whether the last block reached the chosen call."""
        return self._last.reached

    @property
    def happened(self) -> bool:
        """Whether the fault happened in the last block: a call on a file cannot time out."""
        return self._last.happened

    @property
    def description(self) -> str:
        """The last fault as text; "" if none happened."""
        last = self._last
        if not (last.happened and last.at):
            return ""
        return f"call {last.at} ({last.calls[last.at - 1]}) {last.fault.value}"

    def is_answering(self, thread: int) -> bool:
        """Whether the storage is at work on a command or an author's function that this thread called."""
        return thread in self._waiting

    def was_called(self, call: Call) -> bool:
        """Whether this function of the author's was called within `around`."""
        return (id(call.owner), call.name) in self._called

    @contextmanager
    def inject(
        self, at: int, fault: Fault = Fault.DEATH, *, lasting: bool = False, meanwhile: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Let the fault happen at this call (from 1) of the block; if it is lasting, at all later calls too.

        0 only records the calls. Fault.PAUSE runs `meanwhile` in the thread of the call, and then makes the call. After
        a death no call gets through until the end of the block, and no command through a host that was returned before,
        not even after the block.
        """
        plan = FaultPlan(at, fault, lasting, self._files, meanwhile=meanwhile or (lambda: None))
        self._plan = self._last = plan
        try:
            with watch_files(plan):
                yield
        finally:
            self._plan = None
            self._deaths += plan.dead

    def host(self, host: Host) -> Host:
        """Return a host whose commands and kernel calls are recorded and can fail."""
        return _RecordedHost(host, self, self._deaths)

    @contextmanager
    def around(self, calls: tuple[Call, ...]) -> Iterator[None]:
        """Record the calls of the author's functions during the block."""
        with ExitStack() as stack:
            for call in calls:
                stack.enter_context(self._patched(call))
            yield

    @contextmanager
    def _patched(self, call: Call) -> Iterator[None]:
        absent = object()
        own = getattr(call.owner, "__dict__", {}).get(call.name, absent)
        setattr(call.owner, call.name, self._recorded(call))
        try:
            yield
        finally:
            if own is absent:
                delattr(call.owner, call.name)
            else:
                setattr(call.owner, call.name, own)

    def _recorded(self, call: Call) -> Any:
        """Return the replacement of a function: on a class, a descriptor of the same kind."""
        found = inspect.getattr_static(call.owner, call.name)
        on_class = isinstance(call.owner, type)
        kind = type(found) if on_class and isinstance(found, staticmethod | classmethod) else None
        real = found.__func__ if kind else found if on_class else getattr(call.owner, call.name)
        bound = on_class and kind is not staticmethod

        @wraps(real)
        def recorded(*args: Any, **words: Any) -> Any:
            self._called.add((id(call.owner), call.name))
            shown = args[1:] if bound else args
            what = call.describe(*shown, **words) if call.describe else call.name
            return self.call(what, lambda: real(*args, **words), call.error, call.timeout)

        return kind(recorded) if kind else recorded

    def call(
        self, what: str, act: Callable[[], Any], error: Callable[[], Exception], timeout: Callable[[], Exception]
    ) -> Any:
        """Make a call through the boundary, or raise the fault."""
        plan = self._plan
        without_socket = plan is not None and plan.fault is Fault.NO_SOCKET
        if plan is None or not plan.record(what, can_time_out=not without_socket or _connects(error)):
            return self._act(act)
        if plan.fault.late:
            act()
        if without_socket:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        raise error() if plan.fault is Fault.ERROR else timeout()

    def _act(self, act: Callable[[], Any]) -> Any:
        thread = threading.get_ident()
        if thread in self._waiting:
            return act()
        self._waiting.add(thread)
        try:
            return act()
        finally:
            self._waiting.discard(thread)

    def require_alive(self, process: int) -> None:
        """Raise ProcessDied for a process that died in an earlier block."""
        if process != self._deaths:
            raise ProcessDied("this process has died")


class _RecordedHost:
    """A Host whose commands and kernel calls are recorded and can fail."""

    def __init__(self, host: Host, injector: FaultInjector, process: int) -> None:
        self._host = host
        self._injector = injector
        self._process = process

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        def act() -> Result:
            with not_recorded():
                return self._host.run(*argv, stdin=stdin, ok=ok, timeout=timeout)

        def failed() -> Exception:
            status = next(status for status in UNEXPECTED if status not in ok)
            return CommandFailed(argv, Result(status, "", "the kit made this command fail"))

        self._injector.require_alive(self._process)
        return self._injector.call(  # type: ignore[no-any-return]
            " ".join(argv), act, failed, lambda: CommandTimedOut(argv, timeout)
        )

    def call(
        self,
        function: Callable[[], T],
        *words: str,
        timeout: float = TIME_LIMIT,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        def unrecorded() -> T:  # the calls on files in the thread of the kernel call
            with not_recorded():
                return function()

        self._injector.require_alive(self._process)
        return self._injector.call(  # type: ignore[no-any-return]
            " ".join(words),
            lambda: self._host.call(unrecorded, *words, timeout=timeout, discard=discard),
            _broken,
            lambda: CommandTimedOut(words, timeout),
        )
