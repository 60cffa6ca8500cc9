"""An operation that can be interrupted at any call and repeated, and retries while the storage is busy."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from csi_multi.contract import NotFound, Snapshot, StorageError
from csi_multi.contract.errors import NOT_FINAL

from ..assertions import CheckFailed, expect
from ..context import CheckContext
from ..counting import expect_nothing_left

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
        self.renew()
        self.before = self.t.resources()
        self.prepare()

    def renew(self) -> None:  # noqa: B027 - optional on purpose
        """Replace what all runs share if it does not allow one more run."""

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
        expect_nothing_left(self.t, self.before, f"{what}, then deleted")


def attempt(act: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return (answer, None) or (None, error)."""
    try:
        return act(), None
    except CheckFailed:
        raise
    except Exception as error:
        return None, error


def retry(act: Callable[[], T], what: str, seconds: float = 0.0) -> T:
    """Return the answer; repeat the call while its error is retryable, as an orchestrator does. Raises CheckFailed.

    Gives up after as many tries as PAUSES, but not before `seconds`: others may hold what the call waits for.
    """
    answer, error, tries = settle(act, seconds)
    if error is None:
        return answer  # type: ignore[return-value]
    outcome, required = describe_error(error), "the contract requires it to succeed"
    if not isinstance(error, NOT_FINAL):
        raise CheckFailed(f"{what}: raised {outcome}, {required}") from error
    raise CheckFailed(f"{what}: raised {outcome} each of {tries} times, {required}")


def settle(act: Callable[[], T], seconds: float = 0.0) -> tuple[T | None, Exception | None, int]:
    """Repeat a call while its error is retryable; return the last answer, the last error, and how often it was made.

    Gives up as `retry` does.
    """
    ends = time.monotonic() + seconds
    for tries in itertools.count(1):
        answer, error = attempt(act)
        if not isinstance(error, NOT_FINAL):
            break
        time.sleep(PAUSES[min(tries, len(PAUSES)) - 1])
        if tries >= len(PAUSES) and time.monotonic() >= ends:
            break
    return answer, error, tries


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
