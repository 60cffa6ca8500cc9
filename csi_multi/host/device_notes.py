"""Small notes about the devices of this node, in a directory below /dev.

/dev belongs to the node, outlives the containers of the driver, and is empty after a boot, like the list of devices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..contract.errors import Unavailable
from . import small_files


class DeviceNotes:
    """Notes by name. Every method raises Unavailable when the files cannot be read or changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, name: str, facts: Mapping[str, str]) -> None:
        """Write a note atomically."""
        file, new = self._directory / name, self._directory / f".{name}"
        with dev_errors_as_unavailable(file):
            self._directory.mkdir(mode=0o755, exist_ok=True)
            new.write_text(json.dumps(dict(facts)))
            new.rename(file)

    def read(self, name: str) -> dict[str, str]:
        """Return a note; empty when it does not exist or was not written by this class."""
        file = self._directory / name
        try:
            with dev_errors_as_unavailable(file):
                facts = json.loads(small_files.read(file))
        except (FileNotFoundError, ValueError):
            return {}
        return {key: str(value) for key, value in facts.items()} if isinstance(facts, dict) else {}

    def remove(self, name: str) -> None:
        file = self._directory / name
        with suppress(FileNotFoundError), dev_errors_as_unavailable(file):
            file.unlink()

    def names(self) -> list[str]:
        with suppress(FileNotFoundError), dev_errors_as_unavailable(self._directory):
            return sorted(name for name in os.listdir(self._directory) if not name.startswith("."))
        return []


@contextmanager
def dev_errors_as_unavailable(file: Path) -> Iterator[None]:
    """Raise Unavailable in place of OSError. FileNotFoundError is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(
            f"{file}: {error.strerror}; mount the /dev of the node into the container of the driver, writable"
        ) from None
