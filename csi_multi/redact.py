"""Keep secrets out of everything that is written: what must not be seen, and how it is blotted out.

rpc/sensitive.py finds the sensitive values of a request by reading csi_secret from the descriptors
and puts them here for the time of the RPC; log formatters and status messages pass through scrub().
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any

MASK = "***"
SENSITIVE: ContextVar[tuple[str, ...]] = ContextVar("SENSITIVE", default=())
LONG = 8  # a value this long is blotted out anywhere, a shorter one as a word: "ro" must not turn error into er***r


def scrub(text: str) -> str:
    """Return the text without the sensitive values of the RPC that runs in this thread."""
    for value in SENSITIVE.get():
        if len(value) >= LONG:
            text = text.replace(value, MASK)
        elif value in text:
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", MASK, text)
    return text


def scrub_all(value: Any) -> Any:
    """Scrub every string of a structure of dicts and lists."""
    if not SENSITIVE.get():
        return value
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: scrub_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [scrub_all(item) for item in value]
    return value
