"""A call of foreign code is waited for, up to a limit; its errors arrive at the caller."""

from __future__ import annotations

import sys
import threading

import pytest

from csi_multi.host.supervised import CallExited, CallHung, SupervisedCall


def test_a_result_arrives() -> None:
    assert SupervisedCall("call", lambda: 5).result(5) == 5


def test_an_error_arrives_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        SupervisedCall("call", lambda: 1 // 0).result(5)


def test_a_call_that_would_end_the_process_is_an_error() -> None:
    with pytest.raises(CallExited, match=r"^SystemExit$"):
        SupervisedCall("call", sys.exit).result(5)


def test_a_call_that_hangs_is_given_up_and_may_return_later() -> None:
    go = threading.Event()
    call = SupervisedCall("call", go.wait)

    with pytest.raises(CallHung, match=r"^did not return within 0\.01 s$"):
        call.result(0.01)
    assert not call.done(0)
    go.set()

    assert call.result(5) is True
