"""A dry run: a backend goes through a creation without changing anything, for `csi-multi explain`.

The backend's own code runs, with a client or host that passes reads on to the storage and records changes instead
of making them. So the recorded steps are those of a real creation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from .errors import Unavailable
from .machine import TIME_LIMIT, Host, Result


class Unpredictable(Unavailable):
    """The next steps depend on the result of a step that was not done, or on storage that was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command or an API call as an operator would write it, and its purpose."""

    words: tuple[str, ...]
    why: str
    changes: bool = True  # False: it only reads


@dataclass(slots=True)
class DryRunReport:
    """The steps of one creation.

    `offline`: the storage is not read. A read then has its usual result, which is recorded with
    `record_assumption`; where no result is usual, Unpredictable is raised.
    """

    offline: bool = False
    steps: list[Step] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def record_read(self, *words: str, why: str) -> None:
        """Record a step that only reads."""
        self.steps.append(Step(words=words, why=why, changes=False))

    def record_change(self, *words: str, why: str) -> None:
        """Record a step that would change something."""
        self.steps.append(Step(words=words, why=why))

    def record_assumption(self, text: str) -> None:
        """Record an assumption about storage that was not read."""
        if text not in self.assumed:
            self.assumed.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPurpose:
    """Why a backend runs a command, and whether the command only reads."""

    why: str
    read_only: bool = False


class DryRunHost:
    """A host for dry runs of a backend that runs commands.

    `known` returns the purpose of a command, or None for an unknown one, which is not run. `answer` returns the
    output of a read that is not done, or None to run it; a change is never done and prints nothing.
    """

    def __init__(
        self,
        host: Host,
        report: DryRunReport,
        known: Callable[[Sequence[str]], CommandPurpose | None],
        answer: Callable[[Sequence[str]], str | None],
    ) -> None:
        self._host = host
        self._report = report
        self._known = known
        self._answer = answer

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        known = self._known(argv)
        if known is None:
            raise Unpredictable(
                f"the command {' '.join(argv)} is not in the table of the dry run, so it was not run; "
                "add it with its purpose"
            )
        if not known.read_only:
            self._report.record_change(*argv, why=known.why)
            return Result(0, "", "")
        self._report.record_read(*argv, why=known.why)
        answer = self._answer(argv)
        if answer is not None:
            return Result(0, answer, "")
        return self._host.run(*argv, stdin=stdin, ok=ok, timeout=timeout)

    def call(self, function: Callable[[], object], *words: str, **_: object) -> NoReturn:
        raise Unpredictable(f"{' '.join(words)} was not done, because what it returns cannot be told in a dry run")
