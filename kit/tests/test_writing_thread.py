"""A thread that writes closes itself what it writes to, also when a write hangs for longer than anybody waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from csi_multi_testing import writing_thread
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.writing_thread import WritingThread


class Hanging(WritingThread):
    when = "while the volume is open"

    def __init__(self) -> None:
        super().__init__()
        self.goes_on, self.hangs, self.closed = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.closed.set()

    def write(self, number: int) -> None:
        self.hangs.set()
        assert self.goes_on.wait(60)


class Failing(WritingThread):
    when = "while the volume is open"

    @contextmanager
    def opened(self) -> Iterator[None]:
        raise OSError(5, "Input/output error")
        yield

    def write(self, number: int) -> None:
        raise AssertionError


def test_what_a_hanging_write_uses_is_closed_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = Hanging()
    thread.start()
    assert thread.hangs.wait(60)
    monkeypatch.setattr(writing_thread, "TIME_LIMIT", 0.05)

    with pytest.raises(CheckFailed, match=r"a write does not end within 0\.05 s"):
        thread.stop()
    assert not thread.closed.is_set()

    thread.goes_on.set()
    assert thread.closed.wait(60)


def test_the_error_of_the_first_writes_is_told() -> None:
    thread = Failing()

    with pytest.raises(CheckFailed, match=r"first writes: while the volume is open: .* Input/output error"):
        thread.start()
    thread.stop()


def test_a_thread_that_was_not_started_can_be_stopped() -> None:
    Hanging().stop()
