"""The hooks of Storage as commands of this machine, for the file of `csi-multi conformance --storage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from csi_multi.contract import Host

from .assertions import CheckFailed
from .storage_server import StorageServer

Words = tuple[str, ...]
LIMIT = 300.0  # seconds for one command: it may wait for a server to start


def away(host: Host, leave: Words, come_back: Words) -> Callable[[], AbstractContextManager[None]]:
    """Return Storage.away, or Storage.rotate: one command before the block, and the other one after it."""

    return lambda: undone(lambda: host.run(*leave, timeout=LIMIT), lambda: host.run(*come_back, timeout=LIMIT), "back")


def occupy(host: Host, take: Words, give_back: Words) -> Callable[[int], AbstractContextManager[None]]:
    """Return Storage.occupy: the bytes are the last argument of the command before the block."""

    def occupied(size: int) -> AbstractContextManager[None]:
        return undone(
            lambda: host.run(*take, str(size), timeout=LIMIT), lambda: host.run(*give_back, timeout=LIMIT), "vacate"
        )

    return occupied


def for_volume(host: Host, begin: Words, end: Words) -> Callable[[str], AbstractContextManager[None]]:
    """Return a hook for a block and one volume: the handle is the last argument of both commands."""
    do, undo = of_volume(host, begin), of_volume(host, end)
    return lambda handle: undone(lambda: do(handle), lambda: undo(handle), "lengthen")


@contextmanager
def undone(do: Callable[[], object], undo: Callable[[], object], name: str) -> Iterator[None]:
    """Call `do` before the block and `undo`, with this name in messages, after it; also where `do` did a part only.

    Raises CheckFailed with both errors where `undo` fails after another error.
    """
    try:
        do()
        yield
    except Exception as error:
        _undo(undo, name, f"{error}; then ")
        raise
    except BaseException:  # an interrupt
        undo()
        raise
    _undo(undo, name)


def _undo(undo: Callable[[], object], name: str, before: str = "") -> None:
    try:
        undo()
    except Exception as error:
        raise CheckFailed(f"{before}Storage.{name} failed, do it by hand: {error}") from error


def of_volume(host: Host, words: Words) -> Callable[[str], str]:
    """Return a hook for one volume: the handle is the command's last argument. It returns what the command prints."""
    return lambda handle: host.run(*words, handle, timeout=LIMIT).stdout


def plain(host: Host, words: Words) -> Callable[[], str]:
    """Return a hook without arguments."""
    return lambda: host.run(*words, timeout=LIMIT).stdout


def server(host: Host, pid: Words, start: Words) -> StorageServer:
    """Return Storage.server: one command prints the process id, the other one starts the process again."""
    return StorageServer(
        pid=lambda: int(host.run(*pid, timeout=LIMIT).stdout), start=lambda: host.run(*start, timeout=LIMIT)
    )
