"""Parameters of tests that `make lvm` runs once, and `make matrix` with all values."""

from __future__ import annotations

import os
from typing import TypeVar

FULL = bool(os.environ.get("MATRIX"))

T = TypeVar("T")


def once(first: T, *others: T) -> list[T]:
    """Return the values for a test's parameter: the first is always used, the others in the matrix only."""
    return [first, *others] if FULL else [first]
