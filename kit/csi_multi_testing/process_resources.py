"""What this process holds of the machine: open files, threads, child processes."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from csi_multi.host import kept_threads

WAIT = 10.0  # seconds for threads and processes that were told to end


@dataclass(frozen=True)
class ProcessResources:
    """The resources of each kind, by what they are."""

    files: Counter[str]
    threads: Counter[str]
    processes: Counter[str]

    def more_than(self, before: ProcessResources) -> dict[str, list[str]]:
        """Return what was added since then, by kind."""
        return {kind: sorted((found - getattr(before, kind)).elements()) for kind, found in vars(self).items() if found}


def measure() -> ProcessResources:
    """Return what the process holds now, without what only awaits the garbage collection."""
    gc.collect()
    return ProcessResources(_files(), _threads(), _processes())


def added(before: ProcessResources, allowed: int, *, wait: bool = True) -> dict[str, list[str]]:
    """Return the kinds of which more than `allowed` were added; with `wait`, without those that are about to end."""
    until = time.monotonic() + (WAIT if wait else 0)
    while True:
        more = {kind: names for kind, names in measure().more_than(before).items() if len(names) > allowed}
        if not more or time.monotonic() > until:
            return more
        time.sleep(0.05)


def _threads() -> Counter[str]:
    names = (one.name for one in threading.enumerate())
    return Counter(name for name in names if name != kept_threads.IDLE)


def _files() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing
            found[re.sub(r":\[\d+\]$", "", os.readlink(f"/proc/self/fd/{name}"))] += 1  # noqa: PTH115 - may be no path
    return found


def _processes() -> Counter[str]:
    """Return the names of the child processes, of all threads. Not every kernel has /proc/<pid>/task/*/children."""
    found: Counter[str] = Counter()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process that has ended
            start, _, rest = file.read_text(errors="replace").rpartition(")")  # the name may have any character
            if int(rest.split()[1]) == os.getpid():
                found[start.partition("(")[2]] += 1
    return found
