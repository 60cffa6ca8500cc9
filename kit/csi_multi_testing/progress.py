"""The progress of a run: one changing line on a terminal, one line per check elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO

from .check import CheckState
from .report import CheckResult

BAR = 24  # characters
CLEAR = "\r\x1b[K"


class Progress:
    """Call `begin` before and `end` after each of `total` checks, and `done` at the end."""

    def __init__(self, total: int, out: TextIO) -> None:
        self._total = total
        self._out = out
        self._live = out.isatty()
        self._done = 0
        self._failed = 0

    def begin(self, group: str, name: str) -> None:
        if not self._live:
            return
        full = BAR * self._done // max(self._total, 1)
        bar = "█" * full + "·" * (BAR - full)
        line = f"{bar} {self._done}/{self._total}, {self._failed} failed  {group}: {name}"
        self._write(CLEAR + line[: shutil.get_terminal_size().columns - 1])

    def end(self, one: CheckResult) -> None:
        self._done += 1
        self._failed += one.state is CheckState.FAILED
        if not self._live:
            self._write(f"{one.state.value.upper():<8}{one.seconds:7.2f} s  {one.group}: {one.name} ({one.where})\n")

    def expect_more(self, count: int) -> None:
        """Raise the expected number of results."""
        self._total += count

    def print_line(self, text: str) -> None:
        """Print a line that remains."""
        self._write((CLEAR if self._live else "") + text + "\n")

    def done(self) -> None:
        if self._live:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
