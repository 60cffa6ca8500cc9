"""The process that serves the storage (Storage.server): it is killed and started again, or stopped for a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .assertions import expect

END_SECONDS = 10.0  # until a process that got a signal is gone, or stands still
PAUSE = 0.005  # seconds between two looks


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageServer:
    """The process that changes the storage on this machine: a daemon, or a simulator of an appliance.

    pid: return its process id now.
    start: start it again after it was killed, and return when it serves.
    """

    pid: Callable[[], int]
    start: Callable[[], object]

    def processes(self) -> list[int]:
        """Return its process and those that it has started. Raises CheckFailed for one that must not be killed."""
        found = family(self.pid())
        expect(os.getpid() not in found, f"Storage.server: pid() is {found[0]}, the kit itself, or what has started it")
        return found

    def kill(self) -> None:
        """End it and the processes that it has started with SIGKILL, and wait until they are gone."""
        killed = self.processes()
        _signal(killed, signal.SIGKILL)
        left = _wait(killed, "ZX")
        expect(not left, f"Storage.server: process {left} is still there {END_SECONDS:g} s after SIGKILL")

    def restart(self) -> None:
        self.kill()
        self.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let it answer nothing during the block; afterwards it goes on where it was."""
        processes = self.processes()
        _signal(processes, signal.SIGSTOP)
        try:
            _wait(processes, "TZX")
            yield
        finally:
            _signal(processes, signal.SIGCONT)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait(processes: list[int], states: str) -> list[int]:
    """Wait until these processes have one of the states, or are gone; return those that have not."""
    ends = time.monotonic() + END_SECONDS
    while True:
        left = [pid for pid in processes if (state := _state(pid)) and state[0] not in states]
        if not left or time.monotonic() > ends:
            return left
        time.sleep(PAUSE)


def family(pid: int) -> list[int]:
    """Return a process and those that it has started, and they in turn."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (state := _state(int(entry.name))):
            children.setdefault(int(state[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended: its parent may not have noticed yet."""
    state = _state(pid)
    return bool(state) and state[0] not in ("Z", "X")


def _state(pid: int) -> list[str]:
    """Return the fields of a process from its state on, of which the second is its parent; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
