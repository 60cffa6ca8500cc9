"""A loop device, not the driver's own, whose backing file hangs or fails for as long as a test wants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csi_multi.host.command import LocalHost

MIB = 2**20
SERVER = Path(__file__).parent / "fuse_server.py"


@dataclass
class HangingLoop:
    """Other programs of this machine may meet the device, too: keep the blocks short."""

    device: Path
    server: int

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """For the block, no question about the file is answered."""
        os.kill(self.server, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.server, signal.SIGCONT)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """For the block, every question about the file is answered with an input/output error."""
        os.kill(self.server, signal.SIGUSR1)
        try:
            yield
        finally:
            os.kill(self.server, signal.SIGUSR1)


@contextlib.contextmanager
def hanging_loop(directory: Path, *, visible: bool = False, read_only: bool = False) -> Iterator[HangingLoop]:
    """Attach the file `image` of a filesystem of its own at this directory.

    `visible`: in the mount namespace of the test. Otherwise in one of its own, so that its path leads nowhere here.
    """
    directory.mkdir(parents=True)
    apart = [] if visible else ["unshare", "--mount", "--propagation", "private"]
    words = [*apart, sys.executable, str(SERVER), str(directory), str(MIB)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout
        assert server.stdout.readline() == b"ready\n"
        host = LocalHost()
        inside = ("nsenter", "--mount", "--target", str(server.pid))
        mode = ["--read-only"] if read_only else []
        shown = host.run(*inside, "losetup", "--find", "--show", *mode, str(directory / "image")).stdout
        device = Path(shown.strip())
        try:
            yield HangingLoop(device, server.pid)
        finally:
            host.run("losetup", "--detach", str(device))
            server.kill()
            if visible:
                host.run("umount", "--lazy", str(directory))


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what the call returns or raise what it raises; TimeoutError when it takes longer, and then goes on."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if errors:
        raise errors[0]
    return results[0]
