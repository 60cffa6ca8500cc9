"""Threads are kept for the next short call; a call that hangs keeps its thread, and holds up no other."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from csi_multi.host import kept_threads
from csi_multi.host.supervised import ShortCall

SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


def test_a_thread_is_kept_for_the_next_call() -> None:
    idents = {ShortCall("call", threading.get_ident).result(60) for _ in range(50)}

    assert len(idents) <= kept_threads.KEPT


def test_a_call_sees_nothing_of_the_one_before_in_its_thread() -> None:
    for _ in range(50):
        ShortCall("call", lambda: SEEN.set("the call before")).result(60)

    assert {ShortCall("call", SEEN.get).result(60) for _ in range(50)} == {"nothing"}


def test_calls_that_hang_hold_up_no_other_and_leave_few_idle_threads() -> None:
    go_on = threading.Event()
    hanging = [ShortCall("call", lambda: go_on.wait(60)) for _ in range(3 * kept_threads.KEPT)]

    assert ShortCall("call", lambda: 5).result(60) == 5
    assert not any(one.done(0) for one in hanging)
    go_on.set()
    assert all(one.result(60) for one in hanging)
    assert len(kept_threads._idle) <= kept_threads.KEPT
