"""Listeners that observe every RPC, command and API call while it runs: metrics and traces, where configured.

The instance of a call is known from the observer, which each instance has of its own. The commands of the node engine
belong to no instance; they count for the instance of the RPC that runs in the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol, TypeVar

from . import errors
from .machine import TIME_LIMIT, Host, Result

T = TypeVar("T")

OK = "ok"
EndCallback = Callable[[str], None]  # called at the end, with the outcome

RPC_INSTANCE: ContextVar[str] = ContextVar("RPC_INSTANCE", default="")
OUTGOING: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("OUTGOING", default=())  # metadata of forwarded RPCs

# Programs whose first argument is a subcommand. Of other programs it may be anything.
SUBCOMMAND_PROGRAMS = frozenset({"btrfs", "cryptsetup", "dmsetup", "nvme"})


@dataclass(frozen=True, slots=True)
class Rpc:
    """An RPC at its beginning. `instance` is a configured name, or "" where none is known."""

    method: str
    instance: str = ""
    volume: str = ""  # volume, snapshot or group id, or the name of a new one
    metadata: Sequence[tuple[str, str | bytes]] = ()


class Listener(Protocol):
    """Its methods run in the thread of the RPC or command, so they must be fast and must not raise."""

    def begin_rpc(self, rpc: Rpc) -> EndCallback:
        """Report the beginning of an RPC; return the function to call at its end, with the name of the status code."""
        ...

    def begin_call(self, instance: str, program: str, operation: str) -> EndCallback:
        """Report the beginning of a command or API call; return the function to call at its end, with the outcome."""
        ...


Listeners = tuple[Listener, ...]


class Observer:
    """`with setting.observe("ec2", "CreateVolume"):` around one command or API call of a backend.

    Program and operation are names in a backend's code, never an id or a user's text.
    """

    __slots__ = ("_instance", "_listeners")

    def __init__(self, instance: str = "", listeners: Listeners = ()) -> None:
        self._instance = instance
        self._listeners = listeners

    def __call__(self, program: str, operation: str = "") -> AbstractContextManager[None]:
        return self._report(program, operation) if self._listeners else nullcontext()

    @contextmanager
    def _report(self, program: str, operation: str) -> Iterator[None]:
        instance = self._instance or RPC_INSTANCE.get()
        ends, result = [one.begin_call(instance, program, operation) for one in self._listeners], OK
        try:
            yield
        except BaseException as error:
            result = outcome(error)
            raise
        finally:
            for end in reversed(ends):
                end(result)


UNOBSERVED = Observer()


class ObservedHost:
    """A host that reports its commands and kernel calls to an observer."""

    def __init__(self, host: Host, observe: Observer) -> None:
        self._host = host
        self._observe = observe

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        with self._observe(PurePath(argv[0]).name, subcommand(argv)):
            return self._host.run(*argv, stdin=stdin, ok=ok, timeout=timeout)

    def call(
        self,
        function: Callable[[], T],
        *words: str,
        timeout: float = TIME_LIMIT,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        with self._observe(PurePath(words[0]).name):
            return self._host.call(function, *words, timeout=timeout, discard=discard)


def observed(host: Host, instance: str, listeners: Listeners) -> Host:
    """Return a host that reports its commands to the listeners for this instance ("": the instance of the RPC)."""
    return ObservedHost(host, Observer(instance, listeners)) if listeners else host


def subcommand(argv: Sequence[str]) -> str:
    """Return the subcommand of a known program, "" for other programs; it is never a user's text."""
    known = PurePath(argv[0]).name in SUBCOMMAND_PROGRAMS and len(argv) > 1 and argv[1].isascii() and argv[1].isalpha()
    return argv[1] if known else ""


def outcome(error: BaseException) -> str:
    """Return the name of the error's class in errors.py, so that a backend's own classes add no names."""
    return next((cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__), "Unexpected")
