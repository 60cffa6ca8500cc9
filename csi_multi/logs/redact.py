"""Keeps secrets out of logs and messages: the sensitive values of the running RPC, and how they are masked.

rpc/sensitive.py finds the sensitive values of a request by the csi_secret option of the descriptors
and stores them here for the time of the RPC; log formatters and status messages pass through scrub().
"""

from __future__ import annotations

import json
import re
from contextvars import ContextVar
from typing import Any

MASK = "***"
SENSITIVE: ContextVar[tuple[str, ...]] = ContextVar("SENSITIVE", default=())
MIN_LINE = 4  # characters; shorter lines of a value reveal nothing
# A value this long is masked anywhere, a shorter one only as a word: "ro" must not turn error into er***r.
MIN_ANYWHERE = 8


def written_forms(value: str) -> set[str]:
    """Return all forms in which a value may be written: unchanged, escaped by repr or JSON, line by line."""
    lines = [line.strip() for line in value.splitlines()]
    whole = [value, *(line for line in lines if len(line) >= MIN_LINE)]
    escaped = [form for text in whole for form in (repr(text), json.dumps(text), json.dumps(text, ensure_ascii=False))]
    return {form for form in (*whole, *(text[1:-1] for text in escaped)) if form}


def scrub(text: str) -> str:
    """Return the text without the sensitive values of the RPC that runs in this thread."""
    for value in SENSITIVE.get():
        if len(value) >= MIN_ANYWHERE:
            text = text.replace(value, MASK)
        elif value in text:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", MASK, text)
    return text


def scrub_all(value: Any) -> Any:
    """Scrub every string of a structure of dicts and lists; anything else is scrubbed in the form that is printed."""
    if not SENSITIVE.get() or value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {scrub_all(key): scrub_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_all(item) for item in value]
    return scrub(str(value))
