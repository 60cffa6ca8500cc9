"""Questions to the kernel that may never be answered, because they reach a filesystem whose server or disk hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..contract.errors import Unavailable
from .supervised import CallExited, CallNotStarted, ShortCall

Answer = TypeVar("Answer")


class NoAnswer(Unavailable):
    """The kernel has not answered yet."""


_unanswered: dict[str, ShortCall[Any]] = {}  # what hangs, as far as this process has asked
_lock = threading.Lock()


class _Question(Generic[Answer]):
    """A question whose answer is discarded when it comes after the question was given up."""

    def __init__(self, question: Callable[[], Answer], discard: Callable[[Answer], None]) -> None:
        self._question = question
        self._discard = discard
        self._lock = threading.Lock()
        self._answered = self._given_up = False

    def __call__(self) -> Answer:
        answer = self._question()
        with self._lock:
            self._answered = True
        if self._given_up:
            self._discard(answer)
        return answer

    def give_up(self) -> bool:
        """Return whether nobody gets the answer; False when it has just come."""
        with self._lock:
            self._given_up = not self._answered
        return self._given_up


def ask(
    what: str,
    question: Callable[[], Answer],
    seconds: float,
    progress: Callable[[], object] = lambda: None,
    discard: Callable[[Answer], None] = lambda _: None,
) -> Answer:
    """Return the answer to a question about `what`, or raise what the question raises.

    The question runs in a thread for it alone, which is left behind when it hangs: nothing can end a call that waits in
    the kernel. What hangs is not asked again until it answers, so at most the callers of the first `seconds` leave a
    thread each. Raises NoAnswer without an answer in time; `discard` gets an answer that comes later. A question of
    many steps may take longer, as long as `progress` returns something else every `seconds`.
    """
    with _lock:
        if what in _unanswered:
            if not _unanswered[what].done(0):
                raise _no_answer(what, seconds)
            del _unanswered[what]
    asked = _Question(question, discard)
    call = ShortCall("a question to the kernel", asked)
    seen = progress()
    while not call.done(seconds):
        before, seen = seen, progress()
        if seen == before and asked.give_up():
            with _lock:
                _unanswered[what] = call
            raise _no_answer(what, seconds)
    try:
        return call.result(0)
    except CallNotStarted as error:
        raise Unavailable(f"no thread could be started to ask about {what}: {error}; try again") from None
    except CallExited as error:
        raise error.__cause__ or error from None


def _no_answer(what: str, seconds: float) -> NoAnswer:
    return NoAnswer(
        f"{what} did not answer within {seconds:g} s; check the disk, the network and the server below its file, "
        "then try again"
    )
