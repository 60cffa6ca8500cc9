"""Let one thing go wrong at every call of an operation, one call after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from csi_multi.contract import StorageError

from .assertions import CheckFailed, CheckSkipped
from .context import CheckContext
from .fault_injection import Fault, FaultInjector, ProcessDied
from .operations.base import Operation, attempt, describe_error

MOST = 400  # calls of one operation: more cannot be met in sensible time
WORDS = 100  # of a call in a verdict


class FaultSweep:
    """Iterate over it for the numbers of the calls; in the loop, `strike` once or more.

    Before each number the operation gets a new subject. With a death the last number is beyond the last
    call: the process dies before its answer is heard.
    """

    def __init__(self, operation: Operation, fault: Fault, *, lasting: bool = False) -> None:
        self.operation = operation
        self.fault = fault
        self.lasting = lasting
        self.where = ""  # what happened, in words

    def __iter__(self) -> Iterator[int]:
        calls, can_time_out = record_calls(self.operation)
        if self.fault.no_answer and not any(can_time_out):
            return  # only files: they always answer
        met = 0
        for call in itertools.count(1):
            if call > MOST:
                raise CheckFailed(
                    f"{self.operation.method} makes more than {MOST} calls through the boundary: "
                    "name fewer directories or functions in Storage.files and Storage.calls"
                )
            if self.fault.no_answer and not (can_time_out[call - 1 : call] or [True])[0]:
                continue
            if self.fault is Fault.DEATH and self._looks(calls[call - 1 : call]):
                continue
            self.operation.begin()
            self._over = True
            yield call
            if self._over:
                break
            met += 1
        lasting = " for good" if self.lasting else ""
        self.operation.t.note(f"{self.operation.method} {self.fault.value}{lasting}, calls met: {met}")

    def _looks(self, call: list[str]) -> bool:
        """Whether a call changes nothing, as the author says: dying there is dying at the next."""
        return bool(call) and call[0].startswith(self.operation.t.storage.read_only_calls)

    def inject(self, call: int) -> tuple[Any, Exception | None]:
        """Run the operation with the fault at this call. Returns its answer, or its error; None for the dead."""
        injector, method = self.operation.t.injector, self.operation.method
        answer, error = run_with_fault(injector, call, self.fault, self.operation.act, lasting=self.lasting)
        self._over = not injector.reached
        if self.fault is Fault.DEATH:
            moment = (
                f"instead of call {call} ({call_text(injector, call)})" if injector.happened else "before it was heard"
            )
            self.where = f"{method}, whose process died {moment}"
            return None, None
        rest = ", as all after it do" if self.lasting else ""
        self.where = f"{method}, whose call {call} ({call_text(injector, call)}) {self.fault.value}{rest}"
        return answer, error

    @property
    def happened(self) -> bool:
        return self.operation.t.injector.happened


def run_with_fault(
    injector: FaultInjector, call: int, fault: Fault, act: Callable[[], Any], *, lasting: bool = False
) -> tuple[Any, Exception | None]:
    """Act with a fault at a call. Returns the answer or the error; (None, None) for a death."""
    with injector.inject(call, fault, lasting=lasting):
        try:
            answer, error = attempt(act)
        except ProcessDied:
            return None, None
    if fault is Fault.DEATH and error and not injector.happened:
        raise error
    return answer, error


def call_text(injector: FaultInjector, call: int) -> str:
    """Return the call of the last block in a few words."""
    text = injector.calls[call - 1] if call <= len(injector.calls) else "none"
    return text if len(text) <= WORDS else f"{text[: WORDS // 2]}...{text[-WORDS // 2 :]}"


def record_calls(operation: Operation) -> tuple[list[str], list[bool]]:
    """Run the operation undisturbed and return its calls, and whether each can time out. Raises Skipped for none."""
    operation.begin()
    with operation.t.injector.inject(0):
        answer = operation.act()
    calls, can_time_out = operation.t.injector.calls, operation.t.injector.can_time_out
    what = f"{operation.method}, undisturbed"
    operation.verify(answer, what)
    operation.clean_up(what)
    if not calls:
        raise CheckSkipped(
            f"{operation.method}: no call through the boundary was seen: name them in Storage.calls or files"
        )
    return calls, can_time_out


def restart_process(context: CheckContext, what: str, *, resume: bool) -> None:
    """Start the next process over the same storage."""
    try:
        context.in_process.restart(resume=resume)
    except StorageError as error:
        raise CheckFailed(f"{what}: resume raised {describe_error(error)}") from error
