"""A guest in user mode: Linux as a process of this machine, five to ten times as fast as an emulated machine.

Its programs run on this machine's processor; only their system calls and page faults go through the guest's kernel. It
has no devices but its work disk, and no terminal. With a network it reaches the addresses of this machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from guest import Task
from image import CACHE, Kernel, module_files
from network import linked

MEMORY = Path("/dev/shm")  # in memory, and programs may be mapped from it
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class UserMode:
    """A Linux kernel as a program, whose first process is uml-init.sh."""

    kernel: Kernel
    network: bool = False

    @contextmanager
    def start(self, task: Task, control: Path) -> Iterator[subprocess.Popen[bytes]]:
        with ExitStack() as undo:
            devices: list[str] = []
            if self.network:
                link = undo.enter_context(linked())
                (control / "network").write_text(f"{link.guest} {link.gateway}\n")
                devices.append(f"vec0:transport=raw,ifname={link.interface},depth=128,gro=1")
            bound = undo.enter_context(_processor())
            yield undo.enter_context(self._started(task, control, devices, bound))

    @contextmanager
    def _started(
        self, task: Task, control: Path, devices: list[str], bound: tuple[str, ...]
    ) -> Iterator[subprocess.Popen[bytes]]:
        (control / "modules").write_text("\n".join(map(str, module_files(self.kernel, task.modules))))
        init = control / "init"
        shutil.copy2(Path(__file__).with_name("uml-init.sh"), init)
        init.chmod(0o755)
        # In a PID namespace: the guest's processes are this machine's, and all must end with the guest.
        words = (
            *("setpriv", "--pdeathsig", "KILL", "--", "unshare", "--pid", "--fork", "--kill-child", "--", *bound),
            *(str(self.kernel.image), f"mem={task.memory}", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"),
            *(f"init={init}", f"ubd0={control / 'work'}", f"uml_dir={control / 'uml'}", "panic=-1"),
            *("con=null", "con0=null,fd:2", "con1=null,fd:1", *devices),
        )
        environment = {**os.environ, "TMPDIR": str(_memory(task, control))}
        with (control / "console").open("wb") as console:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=console, env=environment
            )
        assert process.stdout
        # Not our own standard output: the guest's kernel makes it non-blocking for everybody who has it.
        shown = threading.Thread(target=_show, args=(process, process.stdout))
        shown.start()
        try:
            yield process
        finally:  # guest.py has ended it
            shown.join()
            process.stdout.close()


@contextmanager
def _processor() -> Iterator[tuple[str, ...]]:
    """Give the guest a processor that no other guest has, if there is one: the words that bind it to that one.

    At each system call the guest's kernel and the program wait for each other. On one processor that takes two thirds
    of the time (40 LVM commands on a busy machine: 20 to 24 s, otherwise 33 to 36 s).
    """
    with ExitStack() as undo:
        for number in sorted(os.sched_getaffinity(0)):
            lock = undo.enter_context((CACHE / f"processor-{number}").open("w"))
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield ("taskset", "--cpu-list", str(number))
                return
        yield ()


def _memory(task: Task, control: Path) -> Path:
    """Return the directory for the file that is the guest's memory."""
    wanted = int(task.memory[:-1]) * UNITS[task.memory[-1]] if task.memory[-1] in UNITS else int(task.memory)
    return MEMORY if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > wanted else control


def _show(guest: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    try:
        while part := os.read(output.fileno(), 1 << 16):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # nobody reads it
        guest.kill()
