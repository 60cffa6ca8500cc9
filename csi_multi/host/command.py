"""Runs host commands. No other module of the project imports subprocess.

Commands are lists of arguments, never shell strings, with a fixed locale and a time limit. Secrets go through `stdin`,
because everybody can read arguments. Only its own time limit ends a command, never a caller that stopped waiting: the
retry of that caller gets Busy first, and the result later.
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

KILL_TIMEOUT = 5.0  # seconds for a killed command to end; a process that is stuck in the kernel never does
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class LocalHost:
    """The machine this process runs on."""

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        started = time.monotonic()
        with _stdin(stdin) as source, _memory_file("stdout") as stdout, _memory_file("stderr") as stderr:
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
            _wait_or_kill(process, argv, timeout)
            result = Result(process.returncode, _content(stdout), _content(stderr))
        if log.isEnabledFor(logging.DEBUG):
            extra = {"argv": list(argv), "status": result.status, "ms": _ms(started)}
            log.debug("command", extra={"fields": extra})
        if result.status not in ok:
            raise CommandFailed(argv, result)
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


def _wait_or_kill(process: subprocess.Popen[bytes], argv: tuple[str, ...], timeout: float) -> None:
    if _wait(process, timeout):
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _wait(process, KILL_TIMEOUT)
    log.warning("%s (process %d) exceeded its time limit of %g s and was killed", argv[0], process.pid, timeout)
    raise CommandTimedOut(argv, timeout)


def _wait(process: subprocess.Popen[bytes], timeout: float) -> bool:
    """Wait with a pidfd, because Popen.wait with a time limit polls, which costs 1 ms per command."""
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
def _stdin(text: str | None) -> Iterator[int]:
    """Yield a descriptor to read the text from. It is seekable, because mount --fstab refuses a pipe."""
    if text is None:
        yield subprocess.DEVNULL
        return
    with _memory_file("stdin") as descriptor:
        os.write(descriptor, os.fsencode(text))  # paths need not be UTF-8
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor


@contextlib.contextmanager
def _memory_file(name: str) -> Iterator[int]:
    """Yield a file in memory. As output it never blocks or breaks, so a mkfs can finish after this process ended."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
