"""Two things at the same time: both are waited for, whatever becomes of either."""

from __future__ import annotations

import threading

import pytest
from csi_multi_rbd import side_by_side
from csi_multi_rbd.side_by_side import both

IN_TIME = 10.0


def failing(error: Exception) -> int:
    raise error


def test_both_run_at_the_same_time() -> None:
    meet = threading.Barrier(2)

    assert both(lambda: meet.wait(IN_TIME) >= 0, lambda: meet.wait(IN_TIME) >= 0) == (True, True)


def test_the_error_of_the_first_is_raised_after_both_have_ended() -> None:
    ended: list[int] = []
    with pytest.raises(KeyError, match="first"):
        both(lambda: failing(KeyError("first")), lambda: ended.append(1))

    assert ended == [1]


def test_the_error_of_the_second_is_raised() -> None:
    with pytest.raises(KeyError, match="second"):
        both(lambda: 1, lambda: failing(KeyError("second")))


def test_without_a_thread_one_runs_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(side_by_side.threading.Thread, "start", refuse)

    assert both(lambda: 1, lambda: 2) == (1, 2)
