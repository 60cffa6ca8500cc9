"""A creation that is gone through without being done: for `csi-multi explain`.

A backend's own code makes the volume, over doors to its storage that let pass what only looks and note what
changes something instead of doing it. So what is told is what is done, and cannot differ from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .errors import Unavailable
from .machine import TIME_LIMIT, Host, Result


class Unpredictable(Unavailable):
    """What follows depends on what an earlier step would have made, or on what was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command or an API call in words that an operator knows, and why it is needed."""

    words: tuple[str, ...]
    why: str
    changes: bool = True  # False: it only looks


@dataclass(slots=True)
class DryRunReport:
    """The notes of one creation.

    `offline`: the storage is not asked. A look is then answered with what is usual, which is noted with
    `assume`; where nothing is usual, Unforeseen is raised.
    """

    offline: bool = False
    steps: list[Step] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def look(self, *words: str, why: str) -> None:
        self.steps.append(Step(words=words, why=why, changes=False))

    def change(self, *words: str, why: str) -> None:
        self.steps.append(Step(words=words, why=why))

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPurpose:
    """What a backend knows of one of its commands: why it is run, and whether it only looks."""

    why: str
    looks: bool = False


class DryRunHost:
    """A host for a backend that works by commands.

    `known` says of a command what it is for, None of one that nobody expected: that is not run. `answer` is asked
    for what a look that cannot be done would have printed; a change that is not done prints nothing.
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
            raise Unpredictable(f"{' '.join(argv)} would be run; what it does is not known here, so it was not")
        if not known.looks:
            self._report.change(*argv, why=known.why)
            return Result(0, "", "")
        self._report.look(*argv, why=known.why)
        answer = self._answer(argv)
        if answer is not None:
            return Result(0, answer, "")
        return self._host.run(*argv, stdin=stdin, ok=ok, timeout=timeout)
