"""Runs host commands, and kernel calls that may hang. No other module of the project imports subprocess.

Commands are lists of arguments, never shell strings, with a fixed locale and a time limit. Secrets go through `stdin`,
because everybody can read arguments. Only its own time limit ends a command, never a caller that stopped waiting: the
retry of that caller gets Busy first, and the result later.

`open_streams` holds these rules for a command that is started in any way: LocalHost starts it with subprocess, the rbd
backend with `sh`.

Until a new process runs its program, it has a copy of every open descriptor of this one, with its flock and its
exclusive use of a device, also after a thread here has closed it. So commands start one at a time: each finds released
what was closed before it, and `wait_for_starts` lets a thread here find the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar

from ..contract.machine import TIME_LIMIT, CommandFailed, CommandMissing, CommandTimedOut, Result
from . import bounded

T = TypeVar("T")

log = logging.getLogger(__name__)

START_TIMEOUT = 5.0  # seconds to wait for the start of other commands, which takes milliseconds
KILL_TIMEOUT = 5.0  # seconds for a killed command to end; a process that is stuck in the kernel never does
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_starting = threading.Lock()  # held from the making of a process until it runs its program


class Process(Protocol):
    """A program that was started in a session of its own, so that its number is also that of its process group."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int:
        """Return the exit status of the program, which has ended; negative: the signal that ended it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A question about a command that takes long: it is asked once, and at the answer True the command is killed."""

    after: float  # seconds
    hopeless: Callable[[], bool]  # whether it cannot end; raises nothing


class LocalHost:
    """The machine this process runs on."""

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        with open_streams(argv, stdin) as streams:
            try:
                result = streams.run(_popen, timeout)
            except FileNotFoundError:
                raise CommandMissing(argv[0]) from None
        if result.status not in ok:
            raise CommandFailed(argv, result)
        return result

    def call(
        self,
        function: Callable[[], T],
        *words: str,
        timeout: float = TIME_LIMIT,
        discard: Callable[[T], None] | None = None,
    ) -> T:
        started, name = time.monotonic(), " ".join(words)
        try:
            return bounded.ask(name, function, timeout, discard=discard or (lambda _: None))
        except bounded.NoAnswer:
            log.warning(
                "%s: the kernel has not answered within %g s; the thread that waits is left behind", name, timeout
            )
            raise CommandTimedOut(words, timeout) from None
        finally:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("kernel call", extra={"fields": {"argv": list(words), "ms": _ms(started)}})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStreams:
    """The descriptors that a command is started with as its standard input, output and error."""

    argv: tuple[str, ...]
    started: float  # time.monotonic()
    stdin: int
    stdout: int
    stderr: int

    def run(self, start: Callable[[CommandStreams], Process], timeout: float, doubt: Doubt | None = None) -> Result:
        """Start the command, by a function that returns when its program runs, and wait for its end.

        At the time limit the program and all that it started are killed. Raises CommandTimedOut, and what `start`
        raises.
        """
        with _one_start():
            process = start(self)
        status = _wait_or_kill(process, self.argv, timeout, doubt)
        if log.isEnabledFor(logging.DEBUG):
            extra = {"argv": list(self.argv), "status": status, "ms": _ms(self.started)}
            log.debug("command", extra={"fields": extra})
        return Result(status, _content(self.stdout), _content(self.stderr))


@contextlib.contextmanager
def open_streams(argv: tuple[str, ...], stdin: str | None = None) -> Iterator[CommandStreams]:
    """Yield the streams for one command, whose standard input reads the text."""
    started = time.monotonic()
    with _stdin(stdin) as source, _memory_file("stdout") as stdout, _memory_file("stderr") as stderr:
        yield CommandStreams(argv=argv, started=started, stdin=source, stdout=stdout, stderr=stderr)


def wait_for_starts() -> None:
    """Wait until the processes that are being started now have closed their copies of our descriptors."""
    with _one_start():
        pass


@contextlib.contextmanager
def _one_start() -> Iterator[None]:
    """Keep other starts away. A start that hangs in the kernel holds up each of them for START_TIMEOUT only."""
    alone = _starting.acquire(timeout=START_TIMEOUT)
    try:
        yield
    finally:
        if alone:
            _starting.release()


def _popen(streams: CommandStreams) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        streams.argv,
        stdin=streams.stdin,
        stdout=streams.stdout,
        stderr=streams.stderr,
        env=ENVIRONMENT,
        start_new_session=True,
    )


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


def _wait_or_kill(process: Process, argv: tuple[str, ...], timeout: float, doubt: Doubt | None) -> int:
    """Return the exit status. Raises CommandTimedOut after the process was killed at its time limit or for a doubt."""
    ends, wait = time.monotonic() + timeout, timeout
    if doubt and doubt.after < timeout:
        if _wait(process.pid, doubt.after):
            return process.wait()
        timeout = doubt.after if doubt.hopeless() else timeout
        wait = max(ends - time.monotonic(), 0) if timeout > doubt.after else 0
    if _wait(process.pid, wait):
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
