"""Which volumes are open on this node: a small file for each below /dev.

Attached volumes show as devices whether anybody opened them or not, and the device says nothing of what the
controller knew of the volume. /dev is the node's own, outlives the driver's containers and is empty after a
boot, as the devices are gone then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from csi_multi.errors import Unavailable
from csi_multi.model import Blank

DIRECTORY = "csi-multi-ebs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What was found out when the volume was opened.

    `sequence` is the kernel's diskseq: no two disks have the same one between two boots. Linux 5.15 and later.
    """

    disk: str  # its name in /sys/block at that time
    sequence: str
    blank: Blank

    def means(self, sequence: str | None) -> bool:
        """Whether a disk with this diskseq is the very one that was opened; without any, nobody can tell."""
        return (sequence or "") == self.sequence


class Marks:
    """All of them. Every method raises Unavailable when the files cannot be told or changed."""

    def __init__(self, dev: Path) -> None:
        self._directory = dev / DIRECTORY

    def write(self, handle: str, mark: Mark) -> None:
        """Note that the volume is open; atomic."""
        file, new = self._directory / handle, self._directory / f".{handle}"
        with _explained(file):
            self._directory.mkdir(mode=0o755, exist_ok=True)
            new.write_text(json.dumps({**asdict(mark), "blank": mark.blank.value}))
            new.rename(file)

    def read(self, handle: str) -> Mark | None:
        """Return the mark, None when the volume is not open or what is there was not written by us."""
        file = self._directory / handle
        try:
            with _explained(file):
                facts = json.loads(file.read_text())
            return Mark(disk=facts["disk"], sequence=facts["sequence"], blank=Blank(facts["blank"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def remove(self, handle: str) -> None:
        file = self._directory / handle
        with suppress(FileNotFoundError), _explained(file):
            file.unlink()

    def others(self, handle: str) -> dict[str, Mark]:
        """Return the marks of all other volumes."""
        with suppress(FileNotFoundError), _explained(self._directory):
            names = os.listdir(self._directory)
            return {name: mark for name in names if name != handle and (mark := self.read(name))}
        return {}


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
