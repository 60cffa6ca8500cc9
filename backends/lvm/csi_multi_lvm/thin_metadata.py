"""Which blocks thin volumes have, and which differ, as the metadata of their pool says.

The metadata of an active pool changes while it is read. So the pool is asked to keep a copy, of which there can be one:
it is reserved, read by thin_dump or thin_delta, and released. A process that dies leaves it reserved, and the next one
releases it; that of another program is left alone while the program has the metadata open.

What the program finds goes to a file that has no name, and is read from there: so the copy is not kept as long as
somebody reads a map, and a map takes no memory.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from csi_multi.contract import Busy, Host, Unavailable
from csi_multi.host import exclusive
from csi_multi.host.blockdev import open_descriptor, os_errors_as_unavailable

from .activation import Activation

log = logging.getLogger(__name__)

TIME_LIMIT = 3600.0  # seconds for a program to read the metadata of a pool
LOCK_WAIT = 30.0  # seconds to wait for another map of the pool
INTO_FILE = 'exec "$@" > "$0"'  # for sh, with the file and the words of a program
SECTOR = 512
OPEN_BY_US = "2"  # the pool has its metadata open, and so has this process
HELD_COPY = 6  # field of a pool's status: the block of the copy, or "-"
BLOCK_SIZE = re.compile(r'<superblock\b.* data_block_size="([0-9]+)"')
ALLOCATED = re.compile(r'<(?:single|range)_mapping origin_(?:block|begin)="([0-9]+)"(?:.* length="([0-9]+)")?')
CHANGED = re.compile(r'<(?:different|left_only|right_only) begin="([0-9]+)" length="([0-9]+)"')
END = "</superblock>"

Ranges = Iterator[tuple[int, int]]  # bytes, from and to, in order


class ThinMetadata:
    """The metadata of the thin pool of an instance."""

    def __init__(self, host: Host, activation: Activation, pool: str) -> None:
        self._host = host
        self._activation = activation
        self._pool = pool

    def allocated(self, volume: int) -> Ranges:
        """Return what a volume has, by its number in the pool. Raises Busy, Unavailable."""
        return ranges(self._read("thin_dump", "--metadata-snap", "--dev-id", str(volume)), ALLOCATED)

    def changed(self, base: int, target: int) -> Ranges:
        """Return where two volumes do not share a block. Raises Busy, Unavailable."""
        words = ("--metadata-snap", "--thin1", str(base), "--thin2", str(target))
        return ranges(self._read("thin_delta", *words), CHANGED)

    def _read(self, *words: str) -> _Printed:
        """Return what a program prints about the metadata."""
        with self._activation.pool_active(self._pool) as target:
            metadata = self._activation.device(f"{self._pool}_tmeta")
            if metadata is None:
                raise Unavailable(f"thin pool {self._pool} has no device for its metadata; check the kernel log")
            path = self._activation.path(metadata)
            printed = _Printed()
            with self._copy_kept(target, metadata.name, path):
                file = f"/proc/{os.getpid()}/fd/{printed.file.fileno()}"
                self._host.run("sh", "-c", INTO_FILE, file, *words, str(path), timeout=TIME_LIMIT)
            return printed

    @contextmanager
    def _copy_kept(self, target: str, name: str, path: Path) -> Iterator[None]:
        """Reserve the copy of the metadata for the block, in which no other map reads it. Raises Busy, Unavailable."""
        with ExitStack() as stack:
            with os_errors_as_unavailable(path):
                descriptor = stack.enter_context(open_descriptor(path))
            try:
                stack.enter_context(exclusive.locked(descriptor, fcntl.LOCK_EX, wait=LOCK_WAIT))
            except BlockingIOError:
                raise Busy(f"the metadata of thin pool {self._pool} is being read for another map; try again") from None
            if self._is_reserved(target):
                self._refuse_other_reader(name)
                log.warning("thin pool %s: releasing the copy of its metadata that a process has left", self._pool)
                self._tell(target, "release_metadata_snap")
            stack.callback(self._release, target)  # also when it is not known whether it was reserved
            self._tell(target, "reserve_metadata_snap")
            yield

    def _tell(self, target: str, message: str) -> None:
        self._host.run("dmsetup", "message", target, "0", message)

    def _release(self, target: str) -> None:
        if self._is_reserved(target):
            self._tell(target, "release_metadata_snap")

    def _is_reserved(self, target: str) -> bool:
        words = self._host.run("dmsetup", "status", target).stdout.split()
        if len(words) <= HELD_COPY:
            raise Unavailable(f"thin pool {self._pool} does not work: its status is {' '.join(words)}")
        return words[HELD_COPY] != "-"

    def _refuse_other_reader(self, name: str) -> None:
        """Raise Busy while anything but the pool and this process has the metadata open."""
        count = self._host.run("dmsetup", "info", "--columns", "--noheadings", "-o", "open", name).stdout.strip()
        if count != OPEN_BY_US:
            raise Busy(
                f"another program reads the metadata of thin pool {self._pool}; try again when it has ended, or "
                f"release its copy with: dmsetup message {self._pool} 0 release_metadata_snap"
            )


class _Printed:
    """What a program has printed, in a file that goes when nobody has this object any more."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile("w+", encoding="ascii")  # noqa: SIM115
        weakref.finalize(self, self.file.close)

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        yield from self.file


def ranges(lines: Iterable[str], pattern: re.Pattern[str]) -> Ranges:
    """Yield the ranges in what a program has printed.

    Raises Unavailable where it is not complete.
    """
    block, complete = 0, False
    for line in lines:
        if found := pattern.search(line):
            start = int(found[1]) * block
            yield start, start + int(found[2] or 1) * block
        elif header := BLOCK_SIZE.search(line):
            block = int(header[1]) * SECTOR
        complete = complete or END in line
    if not complete or not block:
        raise Unavailable("what was read of a pool's metadata is not complete; try again")
