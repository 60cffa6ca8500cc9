"""Questions to the kernel that may never be answered, because they reach a filesystem whose server or disk hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ..contract.errors import Unavailable

Answer = TypeVar("Answer")


class NoAnswer(Unavailable):
    """The kernel has not answered yet."""


_unanswered: set[str] = set()  # what hangs, as far as this process has asked: it is not asked again until it answers
_lock = threading.Lock()


def ask(
    what: str, question: Callable[[], Answer], seconds: float, progress: Callable[[], object] = lambda: None
) -> Answer:
    """Return the answer to a question about `what`, or raise what the question raises.

    The question runs in a thread of its own, which is left behind when it hangs: nothing can end a call that waits in
    the kernel. At most the callers of the first `seconds` leave one each. Raises NoAnswer without an answer in time.
    A question of many steps may take longer, as long as `progress` returns something else every `seconds`.
    """
    with _lock:
        if what in _unanswered:
            raise _no_answer(what, seconds)
    answers: list[Answer] = []
    errors: list[BaseException] = []
    answered = threading.Event()

    def run() -> None:
        try:
            answers.append(question())
        except BaseException as error:
            errors.append(error)
        with _lock:
            answered.set()
            _unanswered.discard(what)

    try:
        threading.Thread(target=run, name="bounded question", daemon=True).start()
    except RuntimeError as error:
        raise Unavailable(f"no thread could be started to ask about {what}: {error}; try again") from None
    seen = progress()
    while not answered.wait(seconds):
        before, seen = seen, progress()
        with _lock:
            if seen == before and not answered.is_set():
                _unanswered.add(what)
                raise _no_answer(what, seconds)
    if errors:
        raise errors[0]
    return answers[0]


def _no_answer(what: str, seconds: float) -> NoAnswer:
    return NoAnswer(
        f"{what} did not answer within {seconds:g} s; check the disk, the network and the server below its file, "
        "then try again"
    )
