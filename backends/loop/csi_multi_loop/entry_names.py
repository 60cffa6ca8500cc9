"""The names of one instance's entries, in order, read again only where something has changed."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from pathlib import Path

from csi_multi.contract import LEAF_SHAPE

from .changes import Changes, Subscription

FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MANY = 32  # changed names are dearer than a new list of all names when they are more than this, and this share of all


class EntryNames:
    """The names with the shape of an entry in one directory; some may not be entries."""

    def __init__(self, path: Path, changes: Changes) -> None:
        self._path = path
        self._changed = Subscription(changes)
        self._lock = threading.Lock()
        self._sorted: list[str] = []

    def current(self) -> list[str]:
        """Return the names as they are now, sorted. Raises OSError."""
        with self._lock:
            try:
                directory = os.open(self._path, FLAGS)
            except FileNotFoundError:
                return []
            try:
                self._update(directory)
            except BaseException:
                self._changed.forget()
                raise
            finally:
                os.close(directory)
            return self._sorted.copy()

    def _update(self, directory: int) -> None:
        changed = self._changed.take(directory)
        if changed is None or len(changed) > MANY + len(self._sorted) // MANY:
            self._sorted = sorted(name for name in os.listdir(directory) if LEAF_SHAPE.fullmatch(name))
            return
        for name in changed:
            if not LEAF_SHAPE.fullmatch(name):
                continue
            place = bisect_left(self._sorted, name)
            listed = self._sorted[place : place + 1] == [name]
            self._sorted[place : place + listed] = [name] if exists(name, directory) else []


def exists(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
