"""The two servers that are compared, each in its own process, and their figures from the kernel."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from csi_multi.host.command import start
from csi_multi.rpc.client import Client

START = 20.0  # seconds a server may take to listen
STOP = 60.0
POLL = 0.001
WORKERS = 64  # threads of both servers; the driver's default
MIB = 1 << 20
CONFIG = """\
driver: {name: bench.csi-multi.example, node: bench-node, log_style: json, workers: %d}
backends:
  %s: {kind: loop, directory: %s, min_size: 4096, overprovision: 10}
"""
SCRATCH = "scratch"


class Unmeasurable(Exception):
    """A measurement could not be made; the text says why."""


class Server:
    """One running server: `socket` to talk to, the process to look at."""

    def __init__(self, socket: Path, log: Path, words: tuple[str, ...]) -> None:
        self.socket = socket
        self.endpoint = f"unix:{socket}"
        self._log = log
        with log.open("ab") as stderr:
            environment = {"CSI_ENDPOINT": f"unix://{socket}"}
            self._process: subprocess.Popen[bytes] = start(*words, environment=environment, stderr=stderr)

    def wait(self) -> None:
        """Wait until the server listens; grpc's own waiting would add a back-off of one second."""
        ends = time.monotonic() + START
        while not _listens(self.socket):
            if self._process.poll() is not None or time.monotonic() > ends:
                raise Unmeasurable(f"a server did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(POLL)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=STOP)

    def memory(self) -> dict[str, float]:
        """Return MiB by the kernel's name: Rss, Pss, Private_Dirty, ..."""
        lines = (self._proc / "smaps_rollup").read_text().splitlines()[1:]
        return {key: int(value.split()[0]) * 1024 / MIB for key, _, value in (line.partition(":") for line in lines)}

    def connections(self) -> int:
        """Return how many established TCP connections it has."""
        links = {str(one.readlink()) for one in (self._proc / "fd").iterdir()}
        tables = [(self._proc / "net" / name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table]
        return sum(row[3] == "01" and f"socket:[{row[9]}]" in links for row in rows)

    def cpu(self, *, commands: bool = False) -> float:
        """Return the seconds of CPU of all its threads; with `commands`, also of what it ran and waited for."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11 : 15 if commands else 13])) / os.sysconf("SC_CLK_TCK")

    @property
    def _proc(self) -> Path:
        return Path(f"/proc/{self._process.pid}")


def driver_words(directory: Path, name: str) -> tuple[str, ...]:
    """Return the command of a driver with one loop instance, in a directory of its name."""
    config = directory / f"{name}.yaml"
    config.write_text(CONFIG % (WORKERS, SCRATCH, directory / SCRATCH))
    return (sys.executable, "-m", "csi_multi", "serve", "--config", str(config))


def bare_words(socket: Path) -> tuple[str, ...]:
    return (sys.executable, str(Path(__file__).with_name("bare.py")), str(WORKERS), str(socket))


@contextmanager
def running(directory: Path, name: str, words: tuple[str, ...]) -> Iterator[Server]:
    """Run a server for the block; it listens."""
    server = Server(directory / f"{name}.sock", directory / f"{name}.log", words)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def driver(directory: Path) -> AbstractContextManager[Server]:
    return running(directory, "driver", driver_words(directory, "driver"))


def bare(directory: Path) -> AbstractContextManager[Server]:
    return running(directory, "bare", bare_words(directory / "bare.sock"))


@contextmanager
def client(server: Server) -> Iterator[Client]:
    """A connected client for the block."""
    made = Client(server.endpoint)
    try:
        made.wait()
        yield made
    finally:
        made.close()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
