"""Inject one fault at every call of an operation, one call after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from csi_multi.contract import StorageError

from .assertions import CheckFailed, CheckSkipped
from .context import CheckContext
from .fault_injection import Fault, FaultInjector, ProcessDied
from .operations.base import Operation, attempt, describe_error

MAX_CALLS = 400  # calls of one operation: more would take too long
MAX_CALL_TEXT = 100  # characters of a call in a message


class FaultSweep:
    """Iterate over it for the numbers of the calls; in the loop, call `inject` once or more.

    The operation starts anew before each number. With Fault.DEATH the last number is one beyond the last call: the
    process dies after the last call and before it answers.
    """

    def __init__(self, operation: Operation, fault: Fault, *, lasting: bool = False) -> None:
        self.operation = operation
        self.fault = fault
        self.lasting = lasting
        self.where = ""  # the fault and its call, as text

    def __iter__(self) -> Iterator[int]:
        calls, can_time_out, empties = record_calls(self.operation)
        if self.fault.no_answer and not any(can_time_out):
            return  # only calls on files, which cannot time out
        if self.fault is Fault.TORN and not any(empties):
            return
        met = 0
        for call in itertools.count(1):
            if call > MAX_CALLS:
                raise CheckFailed(
                    f"{self.operation.method} makes more than {MAX_CALLS} calls through the boundary, the limit for a "
                    "test; name fewer directories or functions in Storage.files and Storage.calls"
                )
            if self.fault.no_answer and not (can_time_out[call - 1 : call] or [True])[0]:
                continue
            if self.fault is Fault.DEATH and self._is_read_only(calls[call - 1 : call]):
                continue
            if self.fault is Fault.TORN and not (empties[call - 1 : call] or [True])[0]:
                continue
            self.operation.begin()
            self._over = True
            yield call
            if self._over:
                break
            met += 1
        lasting = " from there on" if self.lasting else ""
        self.operation.t.note(f"{self.operation.method} {self.fault.value}{lasting}, calls tried: {met}")

    def _is_read_only(self, call: list[str]) -> bool:
        """Whether the author says that a call changes nothing: a death at it equals a death at the next call."""
        return bool(call) and call[0].startswith(self.operation.t.storage.read_only_calls)

    def inject(self, call: int) -> tuple[Any, Exception | None]:
        """Run the operation with the fault at this call. Returns (answer, error); both are None for a death."""
        injector, method = self.operation.t.injector, self.operation.method
        answer, error = run_with_fault(injector, call, self.fault, self.operation.act, lasting=self.lasting)
        self._over = not injector.reached
        if self.fault.deadly:
            when = "at" if self.fault is Fault.DEATH else "when it had emptied a file to write it anew, at"
            moment = f"{when} call {call} ({call_text(injector, call)})" if injector.happened else "before it answered"
            self.where = f"{method}, whose process died {moment}"
            return None, None
        rest = " and all later calls fail too" if self.lasting else ""
        self.where = f"{method}, whose call {call} ({call_text(injector, call)}) {self.fault.value}{rest}"
        return answer, error

    @property
    def happened(self) -> bool:
        return self.operation.t.injector.happened


def run_with_fault(
    injector: FaultInjector, call: int, fault: Fault, act: Callable[[], Any], *, lasting: bool = False
) -> tuple[Any, Exception | None]:
    """Run an action with a fault at a call. Returns (answer, error), of which one is None; both for a death."""
    with injector.inject(call, fault, lasting=lasting):
        try:
            answer, error = attempt(act)
        except ProcessDied:
            return None, None
    if fault.deadly and error and not injector.happened:
        raise error
    return answer, error


def call_text(injector: FaultInjector, call: int) -> str:
    """Return a call of the last block as a short text."""
    text = injector.calls[call - 1] if call <= len(injector.calls) else "none"
    return text if len(text) <= MAX_CALL_TEXT else f"{text[: MAX_CALL_TEXT // 2]}...{text[-MAX_CALL_TEXT // 2 :]}"


def record_calls(operation: Operation) -> tuple[list[str], list[bool], list[bool]]:
    """Run the operation without a fault; return its calls, whether each can time out, and whether it empties a file.

    Raises CheckSkipped.
    """
    operation.begin()
    with operation.t.injector.inject(0):
        answer = operation.act()
    injector = operation.t.injector
    calls, can_time_out, empties = injector.calls, injector.can_time_out, injector.empties
    what = f"{operation.method}, without a fault"
    operation.verify(answer, what)
    operation.clean_up(what)
    if not calls:
        raise CheckSkipped(
            f"{operation.method}: no call through the boundary was recorded; "
            "name the calls in Storage.calls or Storage.files"
        )
    return calls, can_time_out, empties


def restart_process(context: CheckContext, what: str, *, resume: bool) -> None:
    """Start the next simulated process over the same storage."""
    try:
        context.in_process.restart(resume=resume)
    except StorageError as error:
        raise CheckFailed(f"{what}: resume raised {describe_error(error)}") from error
