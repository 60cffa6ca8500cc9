"""Which volumes are open on this node: a small file for each below /dev.

Attached volumes show as devices whether anybody opened them or not, and the device says nothing of what the
controller knew of the volume.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from csi_multi.contract import Blank
from csi_multi.host import device_notes as notes

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
        self._notes = notes.DeviceNotes(dev / DIRECTORY)

    def write(self, handle: str, mark: Mark) -> None:
        """Note that the volume is open; atomic."""
        self._notes.write(handle, {**asdict(mark), "blank": mark.blank.value})

    def read(self, handle: str) -> Mark | None:
        """Return the mark, None when the volume is not open or what is there was not written by us."""
        facts = self._notes.read(handle)
        try:
            return Mark(disk=facts["disk"], sequence=facts["sequence"], blank=Blank(facts["blank"]))
        except (ValueError, KeyError):
            return None

    def remove(self, handle: str) -> None:
        self._notes.remove(handle)

    def others(self, handle: str) -> dict[str, Mark]:
        """Return the marks of all other volumes."""
        names = [name for name in self._notes.names() if name != handle]
        return {name: mark for name in names if (mark := self.read(name))}
