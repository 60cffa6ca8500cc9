"""Who is told of every RPC, command and API call as it happens: metrics and traces; nobody, unless configured.

The instance that works is known from the observer, which each instance has of its own, or from the RPC that
runs in this thread: the node engine's commands are for the volume of the RPC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import PurePath
from typing import Protocol

from . import errors
from .machine import TIME_LIMIT, Host, Result

OK = "ok"
Ends = Callable[[str], None]  # called with how it ended

RPC_INSTANCE: ContextVar[str] = ContextVar("RPC_INSTANCE", default="")
OUTGOING: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("OUTGOING", default=())  # metadata to send along

# Programs whose first word says what they do. Of other programs that word may be anything.
VERBS = frozenset({"btrfs", "cryptsetup", "dmsetup", "nvme"})


@dataclass(frozen=True, slots=True)
class Rpc:
    """An RPC as it begins. Names of instances are configured ones, or "" where none is known."""

    method: str
    instance: str = ""
    volume: str = ""  # volume, snapshot or group id, or the name of one that is to be made
    metadata: Sequence[tuple[str, str | bytes]] = ()


class Listener(Protocol):
    """Told in the thread that works, so it must be quick, and it must not raise."""

    def rpc(self, rpc: Rpc) -> Ends:
        """An RPC begins; what is returned is called with the name of its status code when it ends."""
        ...

    def call(self, instance: str, program: str, operation: str) -> Ends:
        """A command or an API call begins; what is returned is called with OK or the class of the failure."""
        ...


Listeners = tuple[Listener, ...]


class Observer:
    """`with setting.observe("ec2", "CreateVolume"):` around one command or API call of a backend.

    Program and operation are names from a backend's code, never an id or anything that a user gave.
    """

    __slots__ = ("_instance", "_listeners")

    def __init__(self, instance: str = "", listeners: Listeners = ()) -> None:
        self._instance = instance
        self._listeners = listeners

    def __call__(self, program: str, operation: str = "") -> AbstractContextManager[None]:
        return self._told(program, operation) if self._listeners else nullcontext()

    @contextmanager
    def _told(self, program: str, operation: str) -> Iterator[None]:
        instance = self._instance or RPC_INSTANCE.get()
        ends, how = [one.call(instance, program, operation) for one in self._listeners], OK
        try:
            yield
        except BaseException as error:
            how = outcome(error)
            raise
        finally:
            for end in reversed(ends):
                end(how)


UNOBSERVED = Observer()


class ObservedHost:
    """A host whose commands are told."""

    def __init__(self, host: Host, observe: Observer) -> None:
        self._host = host
        self._observe = observe

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        with self._observe(PurePath(argv[0]).name, verb(argv)):
            return self._host.run(*argv, stdin=stdin, ok=ok, timeout=timeout)


def observed(host: Host, instance: str, listeners: Listeners) -> Host:
    """Return a host that tells the listeners, if there are any, for which instance commands run ("": the RPC's)."""
    return ObservedHost(host, Observer(instance, listeners)) if listeners else host


def verb(argv: Sequence[str]) -> str:
    """Return what a program of many verbs is asked to do, "" for other programs; never a word that may be a name."""
    told = PurePath(argv[0]).name in VERBS and len(argv) > 1 and argv[1].isascii() and argv[1].isalpha()
    return argv[1] if told else ""


def outcome(error: BaseException) -> str:
    """Return the name of the class of errors.py that an error belongs to: few names, whatever a backend derives."""
    return next((cls.__name__ for cls in type(error).__mro__ if cls.__module__ == errors.__name__), "Unexpected")
