"""Runs host commands. No other module of the project imports subprocess.

Commands are lists of arguments, never shell strings, with a fixed locale and a time limit. Secrets go through `stdin`,
because everybody can read arguments. Only its own time limit ends a command, never a caller that stopped waiting: the
retry of that caller gets Busy first, and the result later.

`run_to_end` holds these rules for a program that is started in any way: LocalHost starts it with subprocess, the rbd
backend with `sh`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, Protocol

from ..contract.machine import TIME_LIMIT, CommandFailed, CommandMissing, CommandTimedOut, Result

log = logging.getLogger(__name__)

KILL_TIMEOUT = 5.0  # seconds for a killed command to end; a process that is stuck in the kernel never does
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class Process(Protocol):
    """A program that was started in a session of its own, so that its number is also that of its process group."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Return the exit status of the program, which has ended; negative: the signal that ended it."""
        ...


# Starts a program with these arguments, and with descriptors as its standard input, output and error.
Start = Callable[[tuple[str, ...], int, int, int], Process]


class LocalHost:
    """The machine this process runs on."""

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        result = run_to_end(argv, _start_process, stdin=stdin, timeout=timeout)
        if result.status not in ok:
            raise CommandFailed(argv, result)
        return result


def run_to_end(argv: tuple[str, ...], start: Start, *, stdin: str | None = None, timeout: float) -> Result:
    """Start a program and wait for its end, whatever its status.

    At the time limit the program and all that it started are killed. Raises CommandTimedOut, and what `start` raises.
    """
    started = time.monotonic()
    with _stdin(stdin) as source, _memory_file("stdout") as stdout, _memory_file("stderr") as stderr:
        process = start(argv, source, stdout, stderr)
        status = _wait_or_kill(process, argv, timeout)
        result = Result(status, _content(stdout), _content(stderr))
    if log.isEnabledFor(logging.DEBUG):
        extra = {"argv": list(argv), "status": result.status, "ms": _ms(started)}
        log.debug("command", extra={"fields": extra})
    return result


def start(*argv: str, environment: Mapping[str, str], stderr: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a long-running program in a session of its own: a driver for a demo or a test."""
    return subprocess.Popen(
        argv,
        env=ENVIRONMENT | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def _start_process(argv: tuple[str, ...], stdin: int, stdout: int, stderr: int) -> Process:
    try:
        return subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, env=ENVIRONMENT, start_new_session=True
        )
    except FileNotFoundError:
        raise CommandMissing(argv[0]) from None


def _wait_or_kill(process: Process, argv: tuple[str, ...], timeout: float) -> int:
    """Return the exit status. Raises CommandTimedOut after the process was killed at its time limit."""
    if _wait(process.pid, timeout):
        return process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if _wait(process.pid, KILL_TIMEOUT):
        process.wait()
    log.warning("%s (process %d) exceeded its time limit of %g s and was killed", argv[0], process.pid, timeout)
    raise CommandTimedOut(argv, timeout)


def _wait(pid: int, timeout: float) -> bool:
    """Wait through a descriptor: Popen.wait with a limit polls, which costs 1 ms per command, as does sh's."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:  # a thread of sh has collected its status already
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _stdin(text: str | None) -> Iterator[int]:
    """Yield a descriptor to read the text from. It is seekable, because mount --fstab refuses a pipe."""
    if text is None:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        return
    with _memory_file("stdin") as descriptor:
        os.write(descriptor, os.fsencode(text))  # paths need not be UTF-8
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor


@contextlib.contextmanager
def _memory_file(name: str) -> Iterator[int]:
    """A file in memory. As output it never blocks or breaks: a mkfs or rbd-nbd that outlives the driver can go on."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
