"""How a backend runs commands on its machine: the interface, results and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .errors import FailedPrecondition, Timeout, Unavailable

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
    """A command was still running at its time limit and was killed."""

    def __init__(self, argv: tuple[str, ...], limit: float) -> None:
        super().__init__(f"{argv[0]} did not finish within {limit:g} s")
        self.argv = argv


class CommandMissing(FailedPrecondition):
    """The program is not installed on this node."""

    def __init__(self, program: str) -> None:
        super().__init__(f"the program {program!r} is not installed on this node; install the package that provides it")


class Host(Protocol):
    """Runs commands on the machine. Tests replace it with one that counts, delays or fails calls."""

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        """Run a command to its end; statuses outside `ok` raise CommandFailed."""
        ...
