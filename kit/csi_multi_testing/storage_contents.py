"""The files of a storage that keeps its records or its data in files (Storage.files)."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

MAX_RECORD = 64 * 1024  # bytes; what is larger is data


def all_files(directories: Iterable[Path]) -> dict[Path, int]:
    """Return the regular files below these directories, with their size."""
    found = {}
    for directory in directories:
        for path in directory.rglob("*"):
            with suppress(FileNotFoundError):  # another one removes it just now
                about = path.lstat()
                if stat.S_ISREG(about.st_mode):
                    found[path] = about.st_size
    return found


def small_files(directories: Iterable[Path]) -> dict[Path, bytes]:
    """Return the regular files below these directories that are not larger than a record, with their content."""
    found = {}
    for path, size in all_files(directories).items():
        with suppress(FileNotFoundError):
            if size <= MAX_RECORD:
                found[path] = path.read_bytes()
    return found
