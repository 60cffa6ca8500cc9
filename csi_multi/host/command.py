"""Run host commands: the only import of subprocess in the project.

Words, never a shell string; a fixed locale; a time limit on every command; what must not be seen in
`ps` goes through `stdin`. A command is ended at its own time limit only, never because the caller of
an RPC stopped waiting: the caller's retry is told Busy, and then finds the result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from ..contract.machine import TIME_LIMIT, CommandFailed, CommandMissing, CommandTimedOut, Result

log = logging.getLogger(__name__)

GRACE = 5.0  # seconds a killed command may take to go: a process stuck in the kernel never does
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class LocalHost:
    """The real machine."""

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        started = time.monotonic()
        with _input(stdin) as source, _memory("stdout") as stdout, _memory("stderr") as stderr:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=source,
                    stdout=stdout,
                    stderr=stderr,
                    env=ENVIRONMENT,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise CommandMissing(argv[0]) from None
            _finish(process, argv, timeout)
            result = Result(process.returncode, _written(stdout), _written(stderr))
        if log.isEnabledFor(logging.DEBUG):
            extra = {"argv": list(argv), "status": result.status, "ms": _ms(started)}
            log.debug("command", extra={"fields": extra})
        if result.status not in ok:
            raise CommandFailed(argv, result)
        return result


def start(*argv: str, environment: Mapping[str, str], stderr: BinaryIO) -> subprocess.Popen[bytes]:
    """Start a long-running program beside us, in a session of its own: a driver for a demo or a test."""
    return subprocess.Popen(
        argv,
        env=ENVIRONMENT | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def _finish(process: subprocess.Popen[bytes], argv: tuple[str, ...], timeout: float) -> None:
    if _ended(process, timeout):
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _ended(process, GRACE)
    log.warning("%s (process %d) was killed after %g s", argv[0], process.pid, timeout)
    raise CommandTimedOut(argv, timeout)


def _ended(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait through a descriptor: Popen.wait with a limit polls, which costs 1 ms per command."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(timeout * 1000):
            return False
    finally:
        os.close(descriptor)
    process.wait()
    return True


@contextlib.contextmanager
def _input(text: str | None) -> Iterator[int]:
    """A file descriptor with the text in memory: seekable, because mount --fstab refuses a pipe."""
    if text is None:
        yield subprocess.DEVNULL
        return
    with _memory("stdin") as descriptor:
        os.write(descriptor, os.fsencode(text))  # paths need not be UTF-8
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor


@contextlib.contextmanager
def _memory(name: str) -> Iterator[int]:
    """A file in memory. As output it never blocks or breaks: a mkfs that outlives us can finish."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _written(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
