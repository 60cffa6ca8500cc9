"""A thread that writes: one numbered write after another, each durable before the next one begins."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from .assertions import CheckFailed, expect

TIME_LIMIT = 60.0  # seconds for a few writes


class WritingThread(ABC):
    """Only the thread itself opens and closes what it writes to: a write that hangs may go on at any later time.

    begun: the number of the last write that was begun.
    done: the number of the last write that is durable.
    """

    when: ClassVar[str]  # it writes, for messages
    few: int = 4  # writes

    def __init__(self) -> None:
        self.begun = self.done = -1
        self._error: Exception | None = None
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def write(self, number: int) -> None:
        """Make this write durable."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open what is written for the block, and write what the others rely on."""
        yield

    def start(self) -> None:
        """Return when everything is open. Raises CheckFailed."""
        self._thread.start()
        expect(self._ready.wait(TIME_LIMIT), f"{self.when}: the first writes do not end within {TIME_LIMIT:g} s")
        self.expect_no_error("the first writes")

    def stop(self) -> None:
        """Raises CheckFailed for a write that does not end."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(TIME_LIMIT)
            expect(not self._thread.is_alive(), f"{self.when}: a write does not end within {TIME_LIMIT:g} s")

    def wait_for_more(self, what: str) -> None:
        """Wait for a few more writes. Raises CheckFailed for a write that failed or was lost."""
        wanted, ends = self.begun + self.few, time.monotonic() + TIME_LIMIT
        while self.done < wanted and not self._error:
            expect(time.monotonic() < ends, f"{what}: {self.when}: writes do not end within {TIME_LIMIT:g} s")
            time.sleep(0.0005)
        self.expect_no_error(what)

    def expect_no_error(self, what: str) -> None:
        if self._error:
            raise CheckFailed(f"{what}: {self.when}: {self._error}") from self._error

    def make(self, number: int) -> None:
        """Count a write and make it."""
        self.begun = number
        self.write(number)
        self.done = number

    def _run(self) -> None:
        try:
            with self.opened():
                self._ready.set()
                while not self._stop.is_set():
                    self.make(self.begun + 1)
        except Exception as error:
            self._error = error
        finally:
            self._ready.set()
