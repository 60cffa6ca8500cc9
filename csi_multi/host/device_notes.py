"""Small notes about this node's devices, in a directory below /dev.

/dev is the node's own, outlives the driver's containers, and is empty after a boot, as the devices are gone then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..contract.errors import Unavailable


class DeviceNotes:
    """Every method raises Unavailable when the files cannot be told or changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, name: str, facts: Mapping[str, str]) -> None:
        """Note the facts; atomic."""
        file, new = self._directory / name, self._directory / f".{name}"
        with _explained(file):
            self._directory.mkdir(mode=0o755, exist_ok=True)
            new.write_text(json.dumps(dict(facts)))
            new.rename(file)

    def read(self, name: str) -> dict[str, str]:
        """Return the facts; none where there is no note, or what is there was not written by us."""
        file = self._directory / name
        try:
            with _explained(file):
                facts = json.loads(file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return {key: str(value) for key, value in facts.items()} if isinstance(facts, dict) else {}

    def remove(self, name: str) -> None:
        file = self._directory / name
        with suppress(FileNotFoundError), _explained(file):
            file.unlink()

    def names(self) -> list[str]:
        with suppress(FileNotFoundError), _explained(self._directory):
            return sorted(name for name in os.listdir(self._directory) if not name.startswith("."))
        return []


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Say what may be wrong with /dev. A file that is not there is the caller's business."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unavailable(
            f"{file}: {error.strerror}; is the node's /dev mounted into the driver's container, writable?"
        ) from None
