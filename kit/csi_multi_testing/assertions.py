"""How a check fails or is skipped: plain functions, so that reports are the same without pytest."""

from __future__ import annotations

from typing import Any


class CheckFailed(AssertionError):
    """The backend broke a rule. The text names the method, what was found, and what the contract requires."""


class CheckSkipped(Exception):
    """The check does not apply here; the text says what is missing."""


def expect(condition: object, text: str) -> None:
    """Raise CheckFailed with this text unless the condition holds."""
    if not condition:
        raise CheckFailed(text)


def same(found: Any, wanted: Any, what: str) -> None:
    """Raise CheckFailed unless both are equal."""
    if found != wanted:
        raise CheckFailed(f"{what}: found {_short(found)}, the contract requires {_short(wanted)}")


def _short(value: Any, most: int = 400) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
