"""Print an explanation for people."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator

from .explanation import ExplainedFilesystem, ExplainedParameter, Explanation

WIDTH = 100
WHY = " " * 9


def text(told: Explanation) -> str:
    return "\n".join(_lines(told))


def _lines(told: Explanation) -> Iterator[str]:
    yield f"StorageClass {told.storage_class} ({told.where})"
    yield from _item("REFUSED", told.refused)
    for warning in told.warnings:
        yield from _item("WARNING", warning)
    if not told.instance:
        return
    yield from _item("backend", f"{told.instance} ({told.kind}): {told.chosen}")
    yield from _item("volume", f"{told.volume_handle or 'not known'}, for PersistentVolume {told.volume}")
    yield from _item("size", told.size or "not known")
    yield from _item("place", "; ".join([*told.places, told.placed]).strip("; "))
    yield "  parameters, as they count"
    yield from _rows(told.parameters)
    if told.filesystem:
        yield from _filesystem(told.filesystem)
    yield from _commands(told)
    for policy in told.policies:
        yield from _item("Kubernetes", policy)


def _rows(parameters: Iterable[ExplainedParameter]) -> Iterator[str]:
    for one in parameters:
        whose = "" if one.given else " (default)"
        yield from _wrapped(f"    {one.key}: ", f"{one.value or '-'}{whose}: {one.meaning}")


def _filesystem(one: ExplainedFilesystem) -> Iterator[str]:
    if not one.type:
        yield from _item("node", f"hands the device on as it is ({one.why}), and never formats it")
        return
    yield from _item("node", f"{one.type} ({one.why}); formats it: {one.formats}")
    if one.mkfs:
        yield from _item("mkfs", shlex.join(one.mkfs))
    yield from _item("mount flags", ", ".join(one.mount_flags))


def _commands(told: Explanation) -> Iterator[str]:
    yield from _item("NOT ASKED", f"no storage was asked: {told.not_asked}" if told.not_asked else "")
    for one in told.assumed:
        yield from _item("assumed", one)
    if told.commands:
        undone = "nothing of it was done now" if told.not_asked else "and was not done now"
        yield f"  what the driver does, in order (? only looks, ! changes something, {undone})"
    for number, command in enumerate(told.commands, 1):
        # On one line, so that it can be copied.
        yield f"    {number:2} {'!' if command.changes else '?'} {shlex.join(command.words)}"
        yield from _wrapped(WHY, command.why, WHY)
    yield from _item("then", told.goes_on)


def _item(name: str, words: str) -> Iterator[str]:
    if words:
        yield from _wrapped(f"  {name}: ", words)


def _wrapped(head: str, words: str, below: str = "      ") -> Iterator[str]:
    yield from textwrap.wrap(
        words, WIDTH, initial_indent=head, subsequent_indent=below, break_on_hyphens=False, break_long_words=False
    )
