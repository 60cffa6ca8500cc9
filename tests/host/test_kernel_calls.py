"""A kernel call runs beside its caller: what hangs is left behind, and what comes of it later is discarded."""

from __future__ import annotations

import threading

import pytest

from csi_multi.contract import CommandTimedOut, Unavailable
from csi_multi.host import kept_threads
from csi_multi.host.command import LocalHost


def test_a_call_returns_what_the_function_returns_and_raises_what_it_raises() -> None:
    assert LocalHost().call(lambda: 5, "five") == 5
    with pytest.raises(ZeroDivisionError):
        LocalHost().call(lambda: 1 // 0, "division")
    with pytest.raises(KeyboardInterrupt):
        LocalHost().call(lambda: (_ for _ in ()).throw(KeyboardInterrupt), "key")


def test_a_call_that_hangs_is_given_up_and_not_made_again_until_it_ends() -> None:
    go_on, discarded, calls = threading.Event(), threading.Event(), []

    def hang() -> str:
        calls.append("hang")
        go_on.wait(60)
        return "late"

    def discard(result: str) -> None:
        assert result == "late"
        discarded.set()

    for _ in range(2):
        with pytest.raises(CommandTimedOut, match=r"umount did not finish within 0\.01 s"):
            LocalHost().call(hang, "umount", "/hanging", timeout=0.01, discard=discard)
    assert calls == ["hang"]
    assert LocalHost().call(lambda: 1, "umount", "/other") == 1
    assert not discarded.is_set()
    go_on.set()
    assert discarded.wait(60)


def test_a_result_in_time_is_not_discarded() -> None:
    discarded: list[int] = []

    assert LocalHost().call(lambda: 7, "seven", discard=discarded.append) == 7
    assert discarded == []


def test_a_call_without_a_thread_is_retried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(kept_threads, "_idle", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match="no thread could be started"):
        LocalHost().call(lambda: 5, "five")
