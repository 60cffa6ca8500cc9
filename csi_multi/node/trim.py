"""Trimming: the blocks that a mounted filesystem does not use are given back to the storage, part after part.

Only one trim runs at a time on a node, whatever process does it. It ends between two parts when the volume is unstaged,
which waits for that.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..contract import ids
from ..contract.errors import Busy, FailedPrecondition, StorageError
from ..contract.machine import CommandFailed, Host
from ..host.device_notes import dev_errors_as_unavailable
from ..host.mounts import MountPoint
from . import device_filesystems, device_records
from .device_records import DeviceRecord

NOTES = Path("/dev/csi-multi-trim")
LOCK = ".lock"  # in NOTES; the name of no device
PART = 16 << 30  # bytes of a filesystem that one command trims
IN_ONE = frozenset({"btrfs"})  # each command trims all that no block group has, whatever part is given
TIME_LIMIT = 900.0  # seconds for one part
END_LIMIT = 60.0  # seconds to wait for the end of a part
TRIMMED = re.compile(r"\((\d+) bytes\)")
given_back = Counter[str]()  # bytes by instance, since this process has started

_changing = threading.Condition()
_running = ""  # the number of the device that this process trims
_ended: set[str] = set()  # those that are to be trimmed no further


def trim(host: Host, record: DeviceRecord) -> int:
    """Trim the mounted filesystem of an open device; return the bytes that were given back.

    Raises Busy while another trim runs on this node, FailedPrecondition where nothing can be given back.
    """
    with _alone(), _announced(record.number):
        filesystems = [one for one in device_filesystems.find(record.path) if not one.read_only]
        if not filesystems:
            raise FailedPrecondition(
                f"volume {record.key.volume!r} has no filesystem that is mounted for writing on this node, so there is "
                "nothing to trim"
            )
        freed = sum(_trim_part(host, one, part) for one in filesystems for part in _parts(record, one))
    given_back[ids.split("volume", record.key.volume)[0]] += freed
    return freed


def end(numbers: Iterable[str]) -> None:
    """Let no trim of these devices go on, so that they can be unmounted; wait for the part that runs."""
    wanted = set(numbers)
    with _changing:
        if _running in wanted:
            _ended.add(_running)
            _changing.wait_for(lambda: _running not in wanted, END_LIMIT)


@contextmanager
def _alone() -> Iterator[None]:
    """Raises Busy, Unavailable."""
    with dev_errors_as_unavailable(NOTES):
        NOTES.mkdir(mode=0o755, exist_ok=True)
        descriptor = os.open(NOTES / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy("another volume is being trimmed on this node; try again later") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _announced(number: str) -> Iterator[None]:
    global _running
    with _changing:
        _running = number
    try:
        yield
    finally:
        with _changing:
            _running = ""
            _ended.discard(number)
            _changing.notify_all()


def _parts(record: DeviceRecord, mount: MountPoint) -> Iterator[tuple[str, ...]]:
    """Yield the arguments for each part, as long as the volume is staged."""
    status = os.statvfs(mount.target)
    size = status.f_blocks * status.f_frsize
    for offset in (0,) if mount.fs_type in IN_ONE else range(0, size, PART):
        if record.number in _ended or device_records.of_device(record.number) is None:
            return
        yield () if mount.fs_type in IN_ONE else ("--offset", str(offset), "--length", str(PART))


def _trim_part(host: Host, mount: MountPoint, part: tuple[str, ...]) -> int:
    argv = ("ionice", "-c", "3", "fstrim", "--verbose", *part, mount.target)
    try:
        result = host.run(*argv, timeout=TIME_LIMIT)
    except CommandFailed as error:
        raise _failure(mount, error) from error
    found = TRIMMED.search(result.stdout)
    return int(found[1]) if found else 0


def _failure(mount: MountPoint, error: CommandFailed) -> StorageError:
    if "not supported" not in error.stderr:
        return error
    return FailedPrecondition(
        f"{mount.target} cannot be trimmed: its device takes no discards; for an encrypted volume the class has to say "
        'encryptionDiscard: "true"'
    )
