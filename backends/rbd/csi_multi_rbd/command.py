"""Run rbd, ceph and rbd-nbd with `sh`, by the rules of csi_multi.host.command: the only import of sh.

sh starts the program and collects its exit status. Environment, time limit, output and logging are the core's, since
sh's own time limit makes every command wait for a thread that looks ten times a second, and kills only the process
itself, not what that has started.
"""

from __future__ import annotations

import gc
import logging
from typing import Any

from csi_multi.contract import (
    UNOBSERVED,
    CommandFailed,
    FailedPrecondition,
    Observer,
    Result,
    Unavailable,
)
from csi_multi.host.command import ENVIRONMENT, CommandStreams, Doubt, open_streams

SEARCH_PATH = ENVIRONMENT["PATH"]
PACKAGES = {
    "rbd": "ceph-common",
    "ceph": "ceph-common",
    "rados": "ceph-common",
    "rbd-nbd": "rbd-nbd",
    "/usr/bin/python3": "python3-rbd",
}


class CommandRunner:
    """Run commands of Ceph. Thread-safe. `observe` is for connection.py, which knows what a command does."""

    observe: Observer = UNOBSERVED

    def __init__(self, observe: Observer = UNOBSERVED) -> None:
        self.observe = observe

    def execute(self, program: str, *words: str, timeout: float, stdin: str = "", doubt: Doubt | None = None) -> Result:
        """Run a command and return its result, whatever its status. Raises as `run` does."""
        try:
            return self.run(program, *words, timeout=timeout, stdin=stdin, doubt=doubt)
        except CommandFailed as error:
            return Result(error.status, error.stdout, error.stderr)

    def run(self, program: str, *words: str, timeout: float, stdin: str = "", doubt: Doubt | None = None) -> Result:
        """Run a command.

        Raises CommandFailed for a status other than 0, CommandTimedOut, FailedPrecondition when the program is
        missing, Unavailable when it cannot be started.
        """
        return _run((program, *words), timeout, stdin, doubt)


class BackgroundRunner(CommandRunner):
    """Run commands that no request waits for: a class of its own, so that tests can fail the others alone."""

    def run(self, program: str, *words: str, timeout: float, stdin: str = "", doubt: Doubt | None = None) -> Result:
        return _run((program, *words), timeout, stdin, doubt)


class ShProcess:
    """A command that sh has started."""

    def __init__(self, running: Any) -> None:
        self._running = running

    @property
    def pid(self) -> int:
        return int(self._running.pid)

    def wait(self) -> int:
        try:
            self._running.wait()
        except _sh().ErrorReturnCode as error:
            return int(error.exit_code)
        return 0


def _run(argv: tuple[str, ...], timeout: float, stdin: str, doubt: Doubt | None) -> Result:
    try:
        with open_streams(argv, stdin or None) as streams:
            result = streams.run(_start, timeout, doubt)
    except OSError as error:  # no descriptor is free, for example
        raise _cannot_start(argv[0], error) from None
    if result.status:
        raise CommandFailed(argv, result)
    # on success stderr holds only progress and warnings; of several questions on stdin some may have failed
    return result if stdin else Result(0, result.stdout, "")


def _start(streams: CommandStreams) -> ShProcess:
    sh, argv = _sh(), streams.argv
    try:
        running = sh.Command(argv[0], SEARCH_PATH.split(":"))(
            *argv[1:],
            _in=streams.stdin,
            _out=streams.stdout,
            _err=streams.stderr,
            _env=ENVIRONMENT | {"TZ": "UTC"},  # rbd prints times in local time
            _tty_out=False,
            _new_session=True,
            _bg=True,  # so that the core waits for it
            _bg_exc=False,
        )
    except sh.CommandNotFound:
        package = PACKAGES.get(argv[0], "that provides it")
        raise FailedPrecondition(
            f"the program {argv[0]!r} is not installed on this node; install package {package}"
        ) from None
    except (OSError, sh.ForkException) as error:
        gc.enable()  # sh turns it off before it forks
        raise _cannot_start(argv[0], error) from None
    return ShProcess(running)


def _sh() -> Any:
    import sh  # 30 ms, paid by the first command only

    logging.getLogger("sh").setLevel(logging.WARNING)  # it logs every command at INFO
    return sh


def _cannot_start(program: str, error: Exception) -> Unavailable:
    return Unavailable(f"{program} cannot be started: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Return the last line of an error's text: sh passes on the whole traceback of a child that could not start."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
