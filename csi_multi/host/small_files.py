"""Reads small files with few system calls.

Each call lets another thread of the driver run first. Python's own reading makes nine of them, which was most of the
time of many RPCs at once.
"""

from __future__ import annotations

import os
from pathlib import Path

AT_ONCE = 4096  # bytes; a file that gives fewer has no more. To get a larger buffer takes longer than to fill it


def read(file: Path | str) -> bytes:
    """Return what is in a file of sysfs or a regular one. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(descriptor, AT_ONCE)]
        while len(parts[-1]) == AT_ONCE:
            parts.append(os.read(descriptor, AT_ONCE))
    finally:
        os.close(descriptor)
    return b"".join(parts)
