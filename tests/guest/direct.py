"""Run a guest's task on this machine instead: one at a time, as in a guest, and with its time limit."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from guest import TIMED_OUT, Task

LOCK = Path("/run/csi-multi-tests.lock")
GRACE = 60.0  # seconds for the clean-up after the time limit or a signal


def run(task: Task) -> int:
    """Run the command, and return its exit status.

    Only one task at a time runs on this machine: the tests compare the state of its kernel before and after.
    """
    with LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another task of this kind on this machine", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that started us with & had it ignored
        process = subprocess.Popen(task.command, start_new_session=True)
        try:
            status = process.wait(task.timeout)
        except subprocess.TimeoutExpired:
            print(f"not done after {task.timeout:g} s, stopped", file=sys.stderr)
            return TIMED_OUT
        finally:
            _end(process)
    return status if status >= 0 else 128 - status


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt it as Ctrl-C does, let it clean up, then kill the rest of its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
