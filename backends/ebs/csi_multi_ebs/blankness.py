"""Whether a volume may be formatted on this node, although the node cannot ask EC2.

The publish context says whether the attachment is the volume's first one (first_attachment.py). Kubelet repeats that
context as long as the attachment lasts, also after the volume was used and after the node was booted. So it proves only
something for a disk that appeared after the first note of this boot was written, and of which no note says that it was
formatted. In every other case the whole device is read: one that is all zeros holds no data.

The notes are below /dev, which is empty after a boot and outlives the containers of the driver. A note holds for one
attachment, because the volume may have been used on another node since. Only that a volume was used holds for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from csi_multi.contract import Blank, FailedPrecondition, Strings, Unavailable
from csi_multi.host.device_notes import DeviceNotes

from .device_identity import NvmeKernel
from .first_attachment import NEVER, UNUSED

NOTES_DIRECTORY = "csi-multi-ebs-formats"  # below /dev
PRESENT = "present"  # the note that lists the disks of the time when the first note of this boot was written
READ_SECONDS = 60.0  # for which one call reads a device; the next call continues
MAX_NOTES = 1000  # beyond it, notes of volumes that are no longer attached are removed

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatNote:
    """What is known of a volume: `blank`, or None while its device is read for the first time."""

    blank: Blank | None
    attachment: str  # for which this holds
    zeros: int = 0  # so many bytes from the start were read, and are zeros


class FormatNotes:
    """The notes of this boot. Every method raises Unavailable when they cannot be read or written."""

    def __init__(self, dev: Path) -> None:
        self._notes = DeviceNotes(dev / NOTES_DIRECTORY)

    def begin(self, present: Callable[[], list[str]]) -> None:
        """Note which disks there are, if this is the first note of this boot."""
        if not self._notes.read(PRESENT):
            self._notes.write(PRESENT, {"noted": "true", **dict.fromkeys(present(), "")})

    def was_present(self, disk: str) -> bool:
        return disk in self._notes.read(PRESENT)

    def read(self, handle: str) -> FormatNote | None:
        """Return the note, None without one. One that is not readable says that the volume was used."""
        facts = self._notes.read(handle)
        if not facts and handle not in self._notes.names():
            return None
        try:
            blank = Blank(facts["blank"]) if facts["blank"] else None
            return FormatNote(blank=blank, attachment=facts["attachment"], zeros=int(facts["zeros"]))
        except (ValueError, KeyError):
            return FormatNote(blank=Blank.NEVER, attachment="")

    def write(self, handle: str, note: FormatNote) -> None:
        blank = note.blank.value if note.blank else ""
        self._notes.write(handle, {"blank": blank, "attachment": note.attachment, "zeros": str(note.zeros)})

    def prune(self, attached: Callable[[str], bool]) -> None:
        """Keep the number of notes small on a node that has many volumes in one boot."""
        names = self._notes.names()
        if len(names) > MAX_NOTES:
            for name in names:
                if name != PRESENT and not attached(name):
                    self._notes.remove(name)


class Blankness:
    def __init__(self, kernel: NvmeKernel) -> None:
        self._kernel = kernel
        self._notes = FormatNotes(kernel.dev)

    def begin(self) -> None:
        """Note the present disks. Called before volumes are attached; later it is safe, and costs the first reads."""
        self._notes.begin(lambda: [self._kernel.disk_identity(disk) for disk in self._kernel.disks()])

    def find(self, handle: str, disk: str, path: Path, context: Strings, *, read: bool) -> Blank:
        """Return how to prove that the device of an attached volume is blank.

        `context` is what attach returned. `read`: whether to read the device where nothing else proves anything.
        Raises Unavailable when that takes longer.
        """
        self.begin()
        attachment = context.get("attachment", "")
        note = self._notes.read(handle)
        if context.get("blank") == NEVER or not attachment or (note and note.blank is Blank.NEVER):
            return Blank.NEVER
        if note and note.attachment != attachment:
            note = FormatNote(blank=None, attachment=attachment)  # of another attachment: proves nothing now
        elif note is None and self._is_unused(disk, context):
            note = FormatNote(blank=Blank.ZEROED, attachment=attachment)
        if note and note.blank:
            self._write(handle, note)
            return note.blank
        if not read:
            if note:  # what was read so far may be written now
                self._write(handle, FormatNote(blank=None, attachment=attachment))
            return Blank.NEVER
        return self._read(handle, disk, path, note or FormatNote(blank=None, attachment=attachment))

    def formatting(self, handle: str) -> None:
        """Note that mkfs is about to run. Raises FailedPrecondition when the volume was used, or never opened here."""
        note = self._notes.read(handle)
        if note is None or note.blank in (None, Blank.NEVER):
            raise FailedPrecondition(
                f"volume {handle!r} may hold data, so it is not formatted; stage it again, or check what it holds"
            )
        self._notes.write(handle, FormatNote(blank=Blank.INTERRUPTED, attachment=note.attachment))

    def formatted(self, handle: str) -> None:
        """Note that the volume was used."""
        self._notes.write(handle, FormatNote(blank=Blank.NEVER, attachment=""))

    def current(self, handle: str, opened: Blank) -> Blank:
        """Return the blankness of a volume that was `opened` as this, and may have been formatted since."""
        note = self._notes.read(handle)
        return note.blank if note and note.blank and opened is not Blank.NEVER else opened

    def has_data(self, handle: str) -> bool | None:
        """Return False for a device of which every byte was read as zero, None when that is not known."""
        note = self._notes.read(handle)
        return False if note and note.blank is Blank.ZEROED and note.zeros else None

    def _is_unused(self, disk: str, context: Strings) -> bool:
        """Return whether nothing can have written to the volume yet."""
        return context.get("blank") == UNUSED and not self._notes.was_present(self._kernel.disk_identity(disk))

    def _read(self, handle: str, disk: str, path: Path, note: FormatNote) -> Blank:
        size = int(self._kernel.text(disk, "size") or 0) * 512
        zeros, data = self._kernel.read_zeros(path, note.zeros, size, READ_SECONDS)
        if data:
            return Blank.NEVER
        done = zeros >= size > 0
        blank = Blank.ZEROED if done else None
        self._write(handle, FormatNote(blank=blank, attachment=note.attachment, zeros=zeros))
        if done:
            return Blank.ZEROED
        raise Unavailable(
            f"volume {handle!r} was attached before and {path} shows no data so far, so all of it is read before it is "
            f"formatted: {zeros // MIB} of {size // MIB} MiB until now; this goes on with every try, or, if the volume "
            "was never used, delete its claim and create another one"
        )

    def _write(self, handle: str, note: FormatNote) -> None:
        self._notes.prune(self._kernel.is_plugged)
        self._notes.write(handle, note)
