"""How a backend runs commands and kernel calls on its machine: the interface, results and failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .errors import FailedPrecondition, Timeout, Unavailable

T = TypeVar("T")

TIME_LIMIT = 120.0  # seconds; callers pass more for work that grows with the volume


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    stdout: str
    stderr: str


class CommandFailed(Unavailable):
    """A command exited with a status that its caller did not expect.

    It is Unavailable because the state after it is unknown; a caller that knows the state
    raises a narrower class.
    """

    def __init__(self, argv: tuple[str, ...], result: Result) -> None:
        end = f"was ended by signal {-result.status}" if result.status < 0 else f"exited with status {result.status}"
        super().__init__(f"{argv[0]} {end}: {result.stderr.strip() or 'no output'}")
        self.argv = argv
        self.status = result.status
        self.stderr = result.stderr
        self.stdout = result.stdout  # some programs, for example e2fsck, print their errors here


class CommandTimedOut(Timeout):
    """A command was still running at its time limit and was killed, or a kernel call was given up."""

    def __init__(self, argv: tuple[str, ...], limit: float) -> None:
        super().__init__(f"{argv[0]} did not finish within {limit:g} s")
        self.argv = argv


class CommandMissing(FailedPrecondition):
    """The program is not installed on this node."""

    def __init__(self, program: str) -> None:
        super().__init__(f"the program {program!r} is not installed on this node; install the package that provides it")


class Host(Protocol):
    """Runs commands and kernel calls on the machine. Tests replace it with one that counts, delays or fails calls."""

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        """Run a command to its end; statuses outside `ok` raise CommandFailed."""
        ...

    def call(
        self,
        function: Callable[[], T],
        *words: str,
        timeout: float = TIME_LIMIT,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        """Call a function that waits in the kernel; return what it returns, or raise what it raises.

        `words` name the call as the command would be that does the same: in logs, metrics and errors. Nothing can end
        a call in the kernel, so at the time limit it is left behind, in a thread of its own, and CommandTimedOut is
        raised; also for each call with these words until that one has ended. `discard` gets what it returns then.
        The function has to open, and to close, what it uses. Since 1.1.
        """
        ...
