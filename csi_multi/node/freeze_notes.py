"""Notes in /dev of what is frozen, one per device number: as all mounts, they are gone after a boot.

A note is there before the freeze, and locked by the process that made it. Whoever finds one that is not locked knows
that its process died, and thaws (frozen_leftovers.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..contract.errors import Busy, Unavailable
from ..host import exclusive, sysfs

NOTES = Path("/dev/csi-multi-frozen")


class FreezeNote:
    """The open, locked note of a device. `unthawed` names what may be frozen: until it is empty, the note stays."""

    def __init__(self, number: str, descriptor: int) -> None:
        self.number = number
        self.unthawed: set[str] = set()
        self._descriptor = descriptor

    def device(self) -> Path | None:
        """Return the device that was noted; None if the process died before the freeze, or the device is gone.

        Raises Unavailable when this is no note.
        """
        try:
            noted = json.loads(os.pread(self._descriptor, 4096, 0).partition(b"\n")[0])
        except ValueError:  # its process died before it had written the note, so before the freeze
            return None
        match noted:
            case [str(path), str(sequence)]:
                same = sysfs.exists(self.number) and sysfs.disk_sequence(self.number) == sequence
                return Path(path) if same else None  # otherwise the number may be another device's
        raise Unavailable(
            f"{NOTES / self.number} is not a note of this driver; thaw the filesystem with fsfreeze --unfreeze if what "
            "writes to it waits, and remove the file"
        )

    def write(self, device: Path) -> None:
        """Note the device. Only the first line counts: the rest may be of an earlier note."""
        os.pwrite(self._descriptor, json.dumps([str(device), sysfs.disk_sequence(self.number)]).encode() + b"\n", 0)

    def remove(self) -> None:
        (NOTES / self.number).unlink(missing_ok=True)


@contextlib.contextmanager
def kept(device: Path, number: str) -> Iterator[FreezeNote]:
    """Keep a note of the device for the block, and longer if something may be frozen then.

    When it begins, `unthawed` says whether a process that died may have left something. Raises Busy, Unavailable.
    """
    with contextlib.ExitStack() as undo:
        try:
            NOTES.mkdir(mode=0o755, exist_ok=True)
            note = undo.enter_context(locked(number, os.O_CREAT))
            if _leftover(note):
                note.unthawed.add(str(device))
            note.write(device)
        except OSError as error:
            raise Unavailable(
                f"{NOTES / number}: {error.strerror}; mount the /dev of the node into the container of the driver, "
                "writable"
            ) from error
        try:
            yield note
        finally:
            if not note.unthawed:
                note.remove()


def _leftover(note: FreezeNote) -> bool:
    try:
        return note.device() is not None
    except Unavailable:
        return True


@contextlib.contextmanager
def locked(number: str, flags: int = 0) -> Iterator[FreezeNote]:
    """Yield the note of a device, locked. Raises Busy while another thread or process has it, and OSError."""
    busy = Busy(f"the filesystem of device {number} is frozen for another copy; try again")
    descriptor = os.open(NOTES / number, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, descriptor)
        try:
            undo.enter_context(exclusive.locked(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise busy from None
        if not os.fstat(descriptor).st_nlink:  # its owner has removed it between the open and the lock
            raise busy
        yield FreezeNote(number, descriptor)
