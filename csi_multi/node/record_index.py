"""Which devices have a record of a volume (device_records.py), so that the records of other volumes need not be read.

An empty file per record, in a directory per volume beside the records: made before the record, removed after it. So no
record is ever missing here; a file whose record is gone, or is another volume's by now, says nothing. Older versions
wrote records without one: a process that has not looked yet finds those once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from ..contract.errors import Unavailable
from ..host.device_notes import dev_errors_as_unavailable

VOLUMES = ".volumes"  # a note's name does not begin with a dot
ATTEMPTS = 10


class RecordIndex:
    """The index of the records in one directory. Every method raises Unavailable when files cannot be changed."""

    def __init__(self, directory: Path, keys_of_all: Callable[[], Mapping[str, str]]) -> None:
        """`keys_of_all` returns the volume of each record, by its number."""
        self._volumes = directory / VOLUMES
        self._keys_of_all = keys_of_all
        self._lock = threading.Lock()
        self._complete = False

    def numbers(self, volume: str) -> list[str]:
        """Return the numbers of the devices that may have a record of this volume."""
        with self._lock:
            if not self._complete:
                for number, owner in self._keys_of_all().items():
                    self.add(owner, number)
                self._complete = True
        with dev_errors_as_unavailable(self._volumes), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self._directory(volume)))
        return []

    def add(self, volume: str, number: str) -> None:
        """Note that a record of this volume may follow."""
        directory = self._directory(volume)
        for _ in range(ATTEMPTS):  # another thread or driver may remove the directory while it is empty
            with dev_errors_as_unavailable(directory), contextlib.suppress(FileNotFoundError):
                return _touch(directory / number)
            with dev_errors_as_unavailable(directory):
                directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        raise Unavailable(f"{directory} was removed while it was written to; try again")

    def remove(self, volume: str, number: str) -> None:
        """Note that there is no record of this volume any more for this device."""
        directory = self._directory(volume)
        with dev_errors_as_unavailable(directory), contextlib.suppress(FileNotFoundError):
            (directory / number).unlink()
        with contextlib.suppress(OSError):  # it is not empty
            directory.rmdir()

    def _directory(self, volume: str) -> Path:
        return self._volumes / hashlib.sha256(volume.encode(errors="surrogateescape")).hexdigest()[:32]


def _touch(file: Path) -> None:
    os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
