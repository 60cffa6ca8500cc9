"""The changes that a server makes to its disk, one system call each, seen and interrupted by strace.

A server that is killed as it begins the n-th change leaves the first n - 1. What is written to sockets and pipes is no
change. strace counts the calls of each name in each thread: where another thread makes as many, it is killed earlier.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .assertions import CheckSkipped

STRACE = "strace"
END_SECONDS = 10.0

NAMES = (
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
    *("symlink", "symlinkat", "mknod", "mknodat"),
)
SIZES = ("truncate", "ftruncate", "fallocate")
OPENS = ("open", "openat", "creat")
CONTROLS = ("ioctl", "copy_file_range", "mount", "umount2")
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile")
ATTRIBUTES = ("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr")
SYNCS = ("fsync", "fdatasync", "sync_file_range", "syncfs", "msync")
ORDER = (NAMES, SIZES, CONTROLS, OPENS, ATTRIBUTES, WRITES)  # the kinds after which most is left, first
TRACED = ",".join(f"?{name}" for name in sorted({name for kind in (*ORDER, SYNCS) for name in kind}))

REMOVING = ("unlink", "rmdir", "remove", "lremove", "fremove", "mount", "umount")

BEGUN = re.compile(r"(\d+) +(\w+)\((.*)")
RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
AT_DIRECTORY = re.compile(r"AT_FDCWD(<[^>]*>)?, ")
RETURNED = re.compile(r"( <unfinished \.\.\.>| += \S+)$")
FAILED = re.compile(r"\) += -1 ")
TO_FILE = re.compile(r"\d+</(?!dev/|proc/)")
CHANGING_IOCTL = re.compile(r", (FICLONE|BLKDISCARD|BLKZEROOUT|LOOP_|DM_|FS_IOC_SETFLAGS)")
MAX_TEXT = 160  # characters of a call in a message


@dataclass(frozen=True, slots=True)
class DiskChange:
    """A system call: the n-th of this name in its thread since the server was attached to."""

    call: str
    number: int
    text: str

    @property
    def is_sync(self) -> bool:
        """Whether it makes changes durable, and is none itself."""
        return self.call in SYNCS


@dataclass
class Trace:
    """A running strace, and what it has written so far."""

    file: Path
    process: subprocess.Popen[str]
    errors: IO[str] = field(repr=False)

    def killed_one(self) -> bool:
        """Whether a traced process was killed."""
        return "killed by SIGKILL" in self.file.read_text(errors="replace")

    def end(self) -> list[str]:
        """Let the server run on without strace; return the lines."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(END_SECONDS)
        return self.file.read_text(errors="replace").splitlines()


@contextmanager
def traced(processes: Sequence[int], *options: str) -> Iterator[Trace]:
    """Trace these processes for the block. Raises CheckSkipped where that is not possible."""
    if not shutil.which(STRACE):
        raise CheckSkipped(
            "strace is not installed; install it: this check interrupts the server at each change to its disk"
        )
    with tempfile.TemporaryDirectory(prefix="kit-strace-") as directory:
        file = Path(directory, "calls")
        words = [STRACE, "-f", "-y", "-s", "0", "-o", str(file), *options]
        words += [word for pid in processes for word in ("-p", str(pid))]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            try:
                for _ in processes:
                    line = process.stderr.readline()
                    if "attached" not in line:
                        why = line.strip() or "it ended"
                        raise CheckSkipped(f"strace cannot trace the server: {why}; it needs the capability SYS_PTRACE")
                yield Trace(file, process, process.stderr)
            finally:
                process.kill()  # the traced go on


def kill_at(change: DiskChange) -> tuple[str, ...]:
    """Return the options of strace that kill the server as it begins a change."""
    return ("-e", f"trace={change.call}", "-e", f"inject={change.call}:signal=KILL:when={change.number}")


def fail_at(change: DiskChange) -> tuple[str, ...]:
    """Return the options of strace that let a sync fail, or a change find no space; all later writes of data, too.

    Of the others only one: a file that is opened to read it, or renamed to remove it, needs none.
    """
    error, later = "EIO" if change.is_sync else "ENOSPC", "+" if change.call in (*WRITES, *SIZES) else ""
    return ("-e", f"trace={change.call}", "-e", f"inject={change.call}:error={error}:when={change.number}{later}")


def slowed(milliseconds: int) -> tuple[str, ...]:
    """Return the options of strace that delay each change of a name, a size or a block, and each sync."""
    names = ",".join(f"?{name}" for name in (*NAMES, *SIZES, *CONTROLS, *ATTRIBUTES, *SYNCS))
    return ("-e", f"trace={names}", "-e", f"inject={names}:delay_enter={milliseconds * 1000}")


def needs_space(change: DiskChange) -> bool:
    """Whether the system call may find no space."""
    return not change.call.startswith(REMOVING)


def changes(lines: Sequence[str]) -> list[DiskChange]:
    """Return the changes and syncs in the output of strace, in their order."""
    counts: Counter[tuple[str, str]] = Counter()
    seen: list[tuple[DiskChange, str]] = []  # with the whole call, and what it returned
    waiting: dict[str, int] = {}  # thread -> its call that has not returned yet
    for line in lines:
        if match := RESUMED.match(line):
            if (at := waiting.pop(match[1], None)) is not None:
                seen[at] = (seen[at][0], seen[at][1] + match[3])
        elif match := BEGUN.match(line):
            thread, call, rest = match.groups()
            counts[thread, call] += 1
            seen.append((DiskChange(call, counts[thread, call], _text(call, rest)), rest))
            if rest.endswith("<unfinished ...>"):
                waiting[thread] = len(seen) - 1
    return [one for one, rest in seen if _changes_disk(one.call, rest)]


def _text(call: str, rest: str) -> str:
    """Return a call with its arguments, without what it returned and the paths of descriptors for directories."""
    shown = AT_DIRECTORY.sub("", RETURNED.sub("", rest))
    return f"{call}({shown}"[:MAX_TEXT]


def _changes_disk(call: str, rest: str) -> bool:
    if FAILED.search(rest):
        return False
    if call in SYNCS:
        return True
    if call in OPENS:
        return call == "creat" or "O_CREAT" in rest or "O_TRUNC" in rest
    if call == "ioctl":
        return bool(CHANGING_IOCTL.search(rest))
    if call in WRITES:
        return bool(TO_FILE.match(rest))
    return any(call in names for names in ORDER)


def chosen(found: Sequence[DiskChange], most: int) -> list[DiskChange]:
    """Return at most this many changes: of the kinds after which most is left, spread over the operation."""
    kept: list[DiskChange] = []
    for names in ORDER:
        kept += spread([one for one in found if one.call in names], most - len(kept))
    return [one for one in found if one in kept]


def spread(kind: Sequence[DiskChange], most: int) -> list[DiskChange]:
    """Return at most this many, spread evenly."""
    return list(kind) if len(kind) <= most else [kind[number * len(kind) // most] for number in range(most)]
