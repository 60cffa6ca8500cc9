"""An operation that can be disturbed at any call and repeated, and patience with storage that is busy."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from csi_multi.contract import NotFound, Snapshot, StorageError
from csi_multi.core.idempotent import UNSETTLED

from ..assertions import CheckFailed, expect
from ..context import CheckContext

T = TypeVar("T")

PAUSES = tuple(0.01 * 2**step for step in range(10))  # seconds between tries: ten in all


class Operation(ABC):
    """A state-changing method of the contract. One object is used again and again, with a new subject each time.

    What many subjects can share (a source of copies) is made in the constructor.
    """

    method: ClassVar[str]

    def __init__(self, t: CheckContext) -> None:
        self.t = t
        self.before: set[str] = set()  # everything on the storage before the subject was there

    def begin(self) -> None:
        """Choose or make a new subject."""
        self.before = self.t.resources()
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Make what the operation works on."""

    @abstractmethod
    def act(self) -> Any:
        """Ask for it. The same request each time, until the next subject."""

    def verify_survival(self, what: str) -> None:  # noqa: B027 - optional on purpose
        """Demand what must hold after a process died in `act`, before anything is repeated."""

    @abstractmethod
    def verify(self, answer: Any, what: str) -> None:
        """Demand that the state, and the answer, are what was asked for."""

    @abstractmethod
    def is_unchanged(self) -> bool:
        """Whether everything is as if `act` had never been called, as far as it can be told."""

    @abstractmethod
    def remove(self) -> None:
        """Delete the subject."""

    def clean_up(self, what: str) -> None:
        """Delete the subject and demand that nothing stays."""
        retry(self.remove, f"{what}: the clean-up after it")
        left = self.t.resources() - self.before
        expect(not left, f"{what}: left behind after everything was deleted: {', '.join(sorted(left)[:10])}")


def attempt(act: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return (answer, None) or (None, error)."""
    try:
        return act(), None
    except CheckFailed:
        raise
    except Exception as error:
        return None, error


def retry(act: Callable[[], T], what: str) -> T:
    """Return the answer, asking again as an orchestrator does while it is not settled. Raises Broken."""
    told = ""
    for pause in PAUSES:
        answer, error = attempt(act)
        if error is None:
            return answer  # type: ignore[return-value]
        told = describe_error(error)
        if not isinstance(error, UNSETTLED):
            raise CheckFailed(f"{what}: raised {told}, the rule wants it to succeed") from error
        time.sleep(pause)
    raise CheckFailed(f"{what}: raised {told} each of {len(PAUSES)} times, the rule wants it to succeed")


def describe_error(error: BaseException) -> str:
    """Return an error's class, and what it says."""
    foreign = "" if isinstance(error, StorageError) else ", which is not one of errors.py"
    return f"{type(error).__name__} ({error}){foreign}"


def expect_not_found(look: Callable[[], object], what: str) -> None:
    """Demand NotFound."""
    found, error = attempt(look)
    told = f"found {found!r}" if error is None else f"raised {describe_error(error)}"
    expect(isinstance(error, NotFound), f"{what}: {told}, the rule wants NotFound")


def is_not_found(look: Callable[[], object]) -> bool:
    return isinstance(attempt(look)[1], NotFound)


def wait_until_ready(t: CheckContext, snapshot: Snapshot) -> Snapshot:
    """Wait until volumes can be made from a snapshot: some storage systems cut them in the background."""
    for pause in (*PAUSES, *(5.0,) * 24):
        if snapshot.ready:
            break
        time.sleep(pause)
        snapshot = t.client.get_snapshot(snapshot.handle)
    expect(snapshot.ready, f"get_snapshot: {snapshot.handle!r} does not become ready")
    return snapshot
