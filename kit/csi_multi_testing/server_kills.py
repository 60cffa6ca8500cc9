"""An operation during which the server of the storage is killed: at one change to its disk after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from csi_multi.contract import Capacity
from csi_multi.contract.errors import NOT_FINAL

from .assertions import expect
from .concurrency import TIME_LIMIT
from .context import CheckContext
from .disk_changes import TRACED, DiskChange, changes, chosen, kill_at, traced
from .occupied_space import NO_LIMIT
from .operations.base import RETRYABLE_ERRORS, Operation, attempt, describe_error, retry
from .operations.create import SEED, source_volume
from .storage_server import PAUSE, StorageServer, is_running
from .waiting import BACK_SECONDS, wait_for

MOST = 12  # changes of one operation at which the server is killed; Storage.complete: all
OTHERS_SECONDS = 5.0  # for which somebody else may have the space that is missing


def server_of(t: CheckContext) -> StorageServer:
    assert t.storage.server, "the check needs it"
    return t.storage.server


def expect_survival(operation: Operation, *, keeps_space: bool = False) -> None:
    """Kill the server at one change after the other, and once after its answer; each time the request is repeated.

    Each time the resource is deleted at the end, and nothing of it remains, unless the operation itself `keeps_space`.
    """
    t = operation.t
    with untouched(t, "the server was killed"), nullcontext() if keeps_space else same_capacity(t):
        found = [one for one in recorded(operation) if not one.is_sync]
        moments = found if t.storage.complete else chosen(found, MOST)
        for change in (*moments, None):
            operation.begin()
            error = kill_during(server_of(t), change, operation.act)
            where = f"as it began {change.text}" if change else "after its answer"
            what = f"{operation.method}, whose server was killed {where} and started again"
            if error is not None:
                text = (
                    f"{what}: raised {describe_error(error)}, but nobody knows what was done: raise {RETRYABLE_ERRORS}"
                )
                expect(isinstance(error, NOT_FINAL), text)
            operation.verify_survival(what)
            what = f"{what}, then repeated"
            operation.verify(retry(operation.act, what, BACK_SECONDS), what)
            operation.clean_up(what)
        t.note(f"{operation.method}, its server killed at {len(moments)} of {len(found)} changes to its disk")


def recorded(operation: Operation) -> list[DiskChange]:
    """Return the changes that the server makes to its disk during the operation, and its syncs."""
    operation.begin()
    with traced(server_of(operation.t).processes(), "-e", f"trace={TRACED}") as trace:
        answer = operation.act()
        lines = trace.end()
    operation.verify(answer, operation.method)
    operation.clean_up(operation.method)
    return changes(lines)


def kill_during(server: StorageServer, change: DiskChange | None, act: Callable[[], Any]) -> Exception | None:
    """Make a call and kill the server as it begins this change, None for after its answer; start it again.

    Returns the error of the call. Raises CheckFailed for a call that does not return.
    """
    outcome = _Outcome(act)
    if change is None:
        outcome.act()
        server.restart()
        return outcome.error
    processes = server.processes()
    with traced(processes, *kill_at(change)) as trace:
        outcome.thread.start()
        while outcome.thread.is_alive() and is_running(processes[0]) and not trace.killed_one():
            outcome.thread.join(PAUSE)
        server.kill()
    server.start()
    outcome.thread.join(TIME_LIMIT)
    expect(not outcome.thread.is_alive(), f"a call whose server was killed does not return within {TIME_LIMIT:g} s")
    return outcome.error


class _Outcome:
    """A call in a thread of its own, and its error."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.error: Exception | None = None
        self._call = act
        self.thread = threading.Thread(target=self.act, daemon=True)

    def act(self) -> None:
        try:
            self._call()
        except Exception as error:
            self.error = error


@contextmanager
def untouched(t: CheckContext, happened: str) -> Iterator[None]:
    """Require that a volume with its data is there after the block, in which this has happened to others."""
    kept = source_volume(t)
    yield
    _, error = attempt(lambda: t.client.get(kept.handle))
    what = f"another volume, after {happened}"
    expect(error is None, f"{what}: get_volume raised {describe_error(error) if error else ''}")
    if not t.no_data_reason():
        t.expect_filled(kept, SEED, kept.size, what)


@contextmanager
def same_capacity(t: CheckContext) -> Iterator[None]:
    """Require the same capacity after the block, up to half of a volume: others may use the storage, too."""
    if Capacity not in t.features or t.storage.overcommitted or t.client.capacity().available > NO_LIMIT:
        yield
        return
    before = t.client.capacity().available
    yield
    lost = wait_for(lambda: before - t.client.capacity().available, lambda taken: taken < t.size // 2, OTHERS_SECONDS)
    expect(lost < t.size // 2, f"capacity().available is {lost} bytes less than before, although all was deleted again")
