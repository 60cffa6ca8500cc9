"""What `make lvm` meets once and `make matrix` in full."""

from __future__ import annotations

import os
from typing import TypeVar

FULL = bool(os.environ.get("MATRIX"))

T = TypeVar("T")


def once(met: T, *others: T) -> list[T]:
    """Return the values for a parameter of a test: the first is met always, the others in full only."""
    return [met, *others] if FULL else [met]
