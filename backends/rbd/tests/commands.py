"""The commands of requests: recorded, made to fail, or followed by the death of the driver.

Commands of the background (command.BackgroundRunner) are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any
from unittest.mock import patch

from csi_multi_rbd.command import CommandRunner

from csi_multi.contract import CommandFailed, Result

# Where the command itself begins, after the options that all have.
GROUPS = {"group", "image-meta", "snap", "trash", "namespace", "task", "device", "osd"}
VERBS = {"import", "info", "clone", "resize", "flatten", "children", "status", "du", "ls", "rm", "df", "rbd"}

Act = Callable[[str], None]


class Died(BaseException):
    """The process dies here: nothing that handles errors runs any more."""


def told(program: str, *words: str) -> str:
    """Return a command without options: `rbd snap create k8s/test-1/csi-vol-...@csi-tmp-...`."""
    at = next((at for at, word in enumerate(words) if word in GROUPS | VERBS), 0)
    return " ".join([program, *takewhile(lambda word: not word.startswith("-"), words[at:])])


@contextmanager
def watched(before: Act = lambda _: None, after: Act = lambda _: None) -> Iterator[list[str]]:
    """Collect the commands of the block. `before` and `after` are called with each of them, and may raise."""
    run, seen = CommandRunner.run, []

    def running(self: CommandRunner, program: str, *words: str, timeout: float, **more: Any) -> Result:
        command = told(program, *words)
        seen.append(command)
        before(command)
        output = run(self, program, *words, timeout=timeout, **more)
        after(command)
        return output

    with patch.object(CommandRunner, "run", running):
        yield seen


def dies(words: str) -> Act:
    """Let the driver die at the first command that begins with these words."""

    def act(command: str) -> None:
        if command.startswith(words):
            raise Died(command)

    return act


def fails(words: str, status: int, text: str = "rbd: failed") -> Act:
    """Let each command that begins with these words end with a status."""

    def act(command: str) -> None:
        if command.startswith(words):
            raise CommandFailed((command,), Result(status, "", text))

    return act


def once(act: Act) -> Act:
    """Let it happen once: the first time that it does something, which is to raise."""
    done: list[str] = []

    def acting(command: str) -> None:
        if done:
            return
        try:
            act(command)
        except BaseException:
            done.append(command)
            raise

    return acting


def changing(commands: list[str]) -> list[str]:
    """Return those that change something."""
    looks = ("rbd info", "rbd image-meta list", "rbd status", "rbd ls", "rbd snap ls", "rbd du", "rbd trash ls")
    return [command for command in commands if not command.startswith((*looks, "rbd children", "ceph"))]
