"""A question that takes many steps is waited for as long as it gets further, and one that hangs is not."""

from __future__ import annotations

import itertools
import threading

import pytest

from csi_multi.contract import Unavailable
from csi_multi.host import bounded


def test_a_question_that_gets_further_is_waited_for() -> None:
    enough = threading.Event()
    steps = itertools.count()

    def progress() -> int:
        if next(steps) >= 5:
            enough.set()
        return next(steps)

    assert bounded.ask("a long question", lambda: enough.wait(60) and "answer", 0.01, progress) == "answer"


def test_a_question_that_hangs_is_given_up_and_not_asked_again_until_it_ends() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def question() -> None:
        go_on.wait(60)
        ended.set()

    for _ in range(2):
        with pytest.raises(Unavailable, match="a question that hangs did not answer"):
            bounded.ask("a question that hangs", question, 0.01)
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(60)
