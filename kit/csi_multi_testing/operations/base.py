"""An operation that can be interrupted at any call and repeated, and retries while the storage is busy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from csi_multi.contract import NotFound, Snapshot, StorageError
from csi_multi.core.idempotent import NOT_FINAL

from ..assertions import CheckFailed, expect
from ..context import CheckContext

T = TypeVar("T")

PAUSES = tuple(0.01 * 2**step for step in range(10))  # seconds between tries: ten in all
RETRYABLE_ERRORS = "Busy, Unavailable or Timeout"  # NOT_FINAL, for messages


class Operation(ABC):
    """A state-changing method of the contract. One object runs it many times, each time on a new resource.

    What all runs can share (a source of copies) is created in the constructor.
    """

    method: ClassVar[str]

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.before: set[str] = set()  # everything on the storage before the run

    def begin(self) -> None:
        """Start a new run: choose or create a new resource."""
        self.before = self.t.resources()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Create what the operation needs."""

    @abstractmethod
    def act(self) -> Any:
        """Make the request. It is the same each time until the next `begin`."""

    def verify_survival(self, what: str) -> None:  # noqa: B027 - optional on purpose
        """Require what must hold after a process died in `act` and before the request is repeated."""

    @abstractmethod
    def verify(self, answer: Any, what: str) -> None:
        """Require that the state and the answer are as requested."""

    @abstractmethod
    def is_unchanged(self) -> bool:
        """Whether the storage is, as far as the client can see, as if `act` had never been called."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the resource of this run."""

    def clean_up(self, what: str) -> None:
        """Delete the resource and require that nothing remains."""
        retry(self.remove, f"{what}: the deletion at its end")
        left = self.t.resources() - self.before
        expect(not left, f"{what}: remaining after everything was deleted: {', '.join(sorted(left)[:10])}")


def attempt(act: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return (answer, None) or (None, error)."""
    try:
        return act(), None
    except CheckFailed:
        raise
    except Exception as error:
        return None, error


def retry(act: Callable[[], T], what: str) -> T:
    """Return the answer; repeat the call while its error is retryable, as an orchestrator does. Raises CheckFailed."""
    outcome = ""
    for pause in PAUSES:
        answer, error = attempt(act)
        if error is None:
            return answer  # type: ignore[return-value]
        outcome = describe_error(error)
        if not isinstance(error, NOT_FINAL):
            raise CheckFailed(f"{what}: raised {outcome}, the contract requires it to succeed") from error
        time.sleep(pause)
    raise CheckFailed(f"{what}: raised {outcome} each of {len(PAUSES)} times, the contract requires it to succeed")


def describe_error(error: BaseException) -> str:
    """Return an error's class and text."""
    foreign = "" if isinstance(error, StorageError) else ", which is not an error of csi_multi.contract"
    return f"{type(error).__name__} ({error}){foreign}"


def expect_not_found(read: Callable[[], object], what: str) -> None:
    """Require that a read raises NotFound."""
    found, error = attempt(read)
    outcome = f"found {found!r}" if error is None else f"raised {describe_error(error)}"
    expect(isinstance(error, NotFound), f"{what}: {outcome}, the contract requires NotFound")


def is_not_found(read: Callable[[], object]) -> bool:
    return isinstance(attempt(read)[1], NotFound)


def wait_until_ready(t: CheckContext, snapshot: Snapshot) -> Snapshot:
    """Wait until volumes can be created from a snapshot: some storage systems create snapshots in the background."""
    for pause in (*PAUSES, *(5.0,) * 24):
        if snapshot.ready:
            break
        time.sleep(pause)
        snapshot = t.client.get_snapshot(snapshot.handle)
    expect(snapshot.ready, f"get_snapshot: {snapshot.handle!r} does not become ready within 2 minutes")
    return snapshot
