"""The text of an explanation, for people."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator

from .explanation import ExplainedFilesystem, ExplainedParameter, Explanation

WIDTH = 100
WHY = " " * 9


def text(explanation: Explanation) -> str:
    """Return all lines."""
    return "\n".join(_lines(explanation))


def _lines(explanation: Explanation) -> Iterator[str]:
    yield f"StorageClass {explanation.storage_class} ({explanation.where})"
    yield from _item("REFUSED", explanation.refused)
    for warning in explanation.warnings:
        yield from _item("WARNING", warning)
    if not explanation.instance:
        return
    yield from _item("backend", f"{explanation.instance} ({explanation.kind}): {explanation.instance_reason}")
    yield from _item("volume", f"{explanation.volume_handle or 'not known'}, for PersistentVolume {explanation.volume}")
    yield from _item("size", explanation.size or "not known")
    yield from _item("place", "; ".join([*explanation.places, explanation.places_reason]).strip("; "))
    yield "  parameters with their values"
    yield from _rows(explanation.parameters)
    if explanation.filesystem:
        yield from _filesystem(explanation.filesystem)
    yield from _commands(explanation)
    for policy in explanation.policies:
        yield from _item("Kubernetes", policy)


def _rows(parameters: Iterable[ExplainedParameter]) -> Iterator[str]:
    for one in parameters:
        whose = "" if one.given else " (default)"
        yield from _wrapped(f"    {one.key}: ", f"{one.value or '-'}{whose}: {one.meaning}")


def _filesystem(filesystem: ExplainedFilesystem) -> Iterator[str]:
    if not filesystem.type:
        yield from _item("node", f"publishes the raw device ({filesystem.why}) and never formats it")
        return
    yield from _item("node", f"{filesystem.type} ({filesystem.why}); formats it: {filesystem.formats}")
    if filesystem.mkfs:
        yield from _item("mkfs", shlex.join(filesystem.mkfs))
    yield from _item("mount flags", ", ".join(filesystem.mount_flags))


def _commands(explanation: Explanation) -> Iterator[str]:
    reason = explanation.storage_not_read
    yield from _item("OFFLINE", f"the storage was not read: {reason}" if reason else "")
    for one in explanation.assumed:
        yield from _item("assumed", one)
    if explanation.commands:
        done = "none was done now" if reason else "and was not done now"
        yield f"  what the driver does, in order (? only reads, ! changes something, {done})"
    for number, command in enumerate(explanation.commands, 1):
        # On one line, so that it can be copied.
        yield f"    {number:2} {'!' if command.changes else '?'} {shlex.join(command.words)}"
        yield from _wrapped(WHY, command.why, WHY)
    yield from _item("then", explanation.not_shown)


def _item(name: str, words: str) -> Iterator[str]:
    if words:
        yield from _wrapped(f"  {name}: ", words)


def _wrapped(head: str, words: str, below: str = "      ") -> Iterator[str]:
    yield from textwrap.wrap(
        words, WIDTH, initial_indent=head, subsequent_indent=below, break_on_hyphens=False, break_long_words=False
    )
