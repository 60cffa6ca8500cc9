"""Run rbd, ceph and rbd-nbd: the only import of sh.

Words, never a shell string; a fixed, clean environment; no terminal; a session of its own for every command.
A command is ended at its own time limit only, never because the caller of an RPC stopped waiting.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from csi_multi.contract import UNOBSERVED, FailedPrecondition, Observer, Timeout, Unavailable

log = logging.getLogger(__name__)

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Nothing of ours: neither CEPH_ARGS nor CEPH_CONF may change what a command does. rbd tells times in local time.
ENVIRONMENT = {"PATH": PATH, "LC_ALL": "C", "TZ": "UTC"}
PACKAGES = {"rbd": "ceph-common", "ceph": "ceph-common", "rbd-nbd": "rbd-nbd"}
GRACE = 5.0  # seconds a killed command may take to go: a process stuck in the kernel never does


@dataclass(frozen=True, slots=True)
class Answer:
    status: int  # negative: the signal that ended it
    stdout: str
    stderr: str


class TimedOut(Timeout):
    """A command was still running at its time limit and was killed."""


class Shell:
    """The door to the commands. Thread-safe. `observe` is told of what client.py runs with it."""

    observe: Observer = UNOBSERVED

    def __init__(self, observe: Observer = UNOBSERVED) -> None:
        self.observe = observe

    def ask(self, program: str, *words: str, timeout: float) -> Answer:
        """Run a command to its end, whatever its status. Raises TimedOut, FailedPrecondition where it is missing."""
        import sh  # 30 ms, paid by the first command only

        started = time.monotonic()
        try:
            answer = Answer(0, self.run(program, *words, timeout=timeout), "")
        except sh.ErrorReturnCode as error:
            answer = Answer(error.exit_code, _text(error.stdout), _text(error.stderr))
        except sh.TimeoutException:
            raise TimedOut(f"{program} did not finish within {timeout:g} s") from None
        except sh.CommandNotFound:
            package = PACKAGES.get(program, "that provides it")
            raise FailedPrecondition(
                f"the program {program!r} is not installed here; install package {package}"
            ) from None
        except (OSError, sh.ForkException) as error:
            gc.enable()  # sh turns it off before it forks
            raise Unavailable(f"{program} could not be started: {_reason(error)}") from None
        if log.isEnabledFor(logging.DEBUG):
            fields = {"argv": [program, *words], "status": answer.status, "ms": _ms(started)}
            log.debug("command", extra={"fields": fields})
        return answer

    def run(self, program: str, *words: str, timeout: float) -> str:
        """Return what a command printed. Raises sh.ErrorReturnCode with its output, and sh.TimeoutException."""
        return _run(program, words, timeout)


class Background(Shell):
    """Commands that no request waits for have a door of their own: what is tried at the other does not meet them."""

    def run(self, program: str, *words: str, timeout: float) -> str:
        return _run(program, words, timeout)


def _run(program: str, words: tuple[str, ...], timeout: float) -> str:
    """Run a command. sh's own time limit would make every command wait for a thread that looks ten times a second,
    and kill the process alone, not those it has started: so it is kept here.
    """
    with _memory("stdout") as stdout, _memory("stderr") as stderr, _nothing() as stdin:
        running = _start(program, words, stdin, stdout, stderr)
        _finish(running, program, timeout)
        try:
            running.wait()
        except _sh().ErrorReturnCode as error:
            raise type(error)(error.full_cmd, _written(stdout), _written(stderr)) from None
        return _text(_written(stdout))


def _start(program: str, words: tuple[str, ...], stdin: int, stdout: int, stderr: int) -> Any:
    """Start a command. In the background, so that the time limit can be ours."""
    return _sh().Command(program, PATH.split(":"))(
        *words,
        _in=stdin,
        _out=stdout,
        _err=stderr,
        _env=ENVIRONMENT,
        _tty_out=False,
        _new_session=True,
        _bg=True,
        _bg_exc=False,
    )


def _finish(running: Any, program: str, timeout: float) -> None:
    """Wait for the end. At the time limit kill the command, and what it has started. Raises sh.TimeoutException."""
    if _ended(running.pid, timeout):
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    log.warning("%s (process %d) was killed after %g s", program, running.pid, timeout)
    if _ended(running.pid, GRACE):
        with contextlib.suppress(_sh().ErrorReturnCode):
            running.wait()
    raise _sh().TimeoutException(signal.SIGKILL, program)


def _ended(pid: int, timeout: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:  # a thread of sh has seen it end
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(descriptor)


def _sh() -> Any:
    import sh

    logging.getLogger("sh").setLevel(logging.WARNING)  # it tells every command at INFO
    return sh


@contextlib.contextmanager
def _memory(name: str) -> Iterator[int]:
    """A file in memory: it never blocks or breaks, so that an rbd-nbd that stays behind harms nobody."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _nothing() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _written(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _text(output: bytes) -> str:
    return output.decode(errors="replace")


def _reason(error: Exception) -> str:
    """Return the end of an error's text: sh hands on the traceback of a child that could not begin."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def _ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 1)
