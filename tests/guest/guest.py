"""Start one guest, run one command in it, and end it in every case. qemu.py and uml.py are the two kinds."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from image import PROJECT, Kernel, work_disk

TIMED_OUT = 124  # as timeout(1) does
BROKEN = 125  # the guest ended without an exit status of the command
WORK = "/run/work"  # the guest's TMPDIR, on a disk of its own
MODPROBE = """\
#!/bin/sh
exec modprobe {options} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A command and the guest for it."""

    command: tuple[str, ...]  # none: an interactive shell on this terminal
    directory: Path
    environment: Mapping[str, str]
    modules: tuple[str, ...]
    memory: str
    timeout: float | None  # seconds, boot included


class Machine(Protocol):
    """A kind of guest."""

    kernel: Kernel

    def start(self, task: Task, control: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Start a guest whose first process is an init script; the block's end waits until its output is shown.

        The guest's kernel writes to the file `console` in `control`, and the init script to the file `status`.
        """


def run(machine: Machine, task: Task) -> int:
    """Boot a guest, run the task, and return the command's exit status. Nothing remains."""
    with Signals() as signals, tempfile.TemporaryDirectory(prefix="csi-multi-guest-") as directory:
        control = Path(directory)
        _prepare(machine.kernel, task, control)
        work_disk(control / "work")
        with _terminal(), _started(machine, task, control) as process:
            ends = time.monotonic() + task.timeout if task.timeout else float("inf")
            while process.poll() is None and not signals.noted and time.monotonic() < ends:
                time.sleep(0.02)
            running = process.poll() is None
        if signals.noted:
            return 128 + signals.noted
        if running:
            print(f"guest: not done after {task.timeout:g} s, stopped", file=sys.stderr)
            return TIMED_OUT
        return _status(control)


def _prepare(kernel: Kernel, task: Task, control: Path) -> None:
    """Write what the init script and the kernel read in the guest, where this directory is /run/guest."""
    if not any(path.is_relative_to("/tmp") for path in (PROJECT, task.directory)):
        (control / "private-tmp").touch()  # otherwise the guest's /tmp would hide the checkout
    options = shlex.join(kernel.modprobe)
    (control / "modprobe").write_text(MODPROBE.format(options=options))
    (control / "modprobe").chmod(0o755)
    (control / "command").write_text(_script(task, options))


def _script(task: Task, modprobe: str) -> str:
    """Return the shell script that runs the command as the caller would have run it, on the guest's terminal."""
    environment = {**task.environment, "TMPDIR": WORK, "MODPROBE_OPTIONS": modprobe}
    if not sys.stdout.isatty():
        environment["TERM"] = "dumb"  # its output is always a terminal, ours may not be: no colours
    command = task.command or (task.environment.get("SHELL", "/bin/sh"),)
    size = shutil.get_terminal_size()
    mode = "raw -echo" if task.command else f"sane rows {size.lines} cols {size.columns}"
    words = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
    return f"stty {mode}\ncd {shlex.quote(str(task.directory))} || exit {BROKEN}\nexec {shlex.join(words)}\n"


@contextmanager
def _started(machine: Machine, task: Task, control: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the guest, which also dies with this process; end it if it still runs."""
    with machine.start(task, control) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _status(control: Path) -> int:
    try:
        return int((control / "status").read_text())
    except (OSError, ValueError):
        console = control / "console"
        log = console.read_text(errors="replace")[-4000:] if console.exists() else ""
        print(f"guest: ended before the command did; its console:\n{log}", file=sys.stderr)
        return BROKEN


@contextmanager
def _terminal() -> Iterator[None]:
    """Give the terminal back as it was; the guest may be killed before it does."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        os.set_blocking(0, True)


class Signals:
    """Records the signals that end a program instead of obeying at once, so that the clean-up is complete."""

    WANTED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.noted = 0

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._note) for number in self.WANTED}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.noted = number
