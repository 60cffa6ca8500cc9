"""A driver in a child process with its own directory, for the demo, tests and benchmarks."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..host.command import start
from ..rpc.client import Client

START_LIMIT = 120.0  # seconds until the driver must listen; on an emulated processor its imports alone take 20
START_POLL = 0.5
STOP_LIMIT = 60.0  # seconds until running RPCs must have finished


class NotServing(Exception):
    """The driver does not serve; the text contains the end of its log."""


class DriverProcess:
    """`csi-multi serve` on `<directory>/<name>.sock`, logging to `<directory>/<name>.log`."""

    def __init__(
        self,
        directory: Path,
        config: str,
        *,
        mode: str = "all",
        name: str = "csi",
        environment: Mapping[str, str] = MappingProxyType({}),
        wrapper: tuple[str, ...] = (),
        program: tuple[str, ...] = (sys.executable, "-m", "csi_multi"),
    ) -> None:
        """`wrapper` is a command that starts the driver, for example ("unshare", "--mount").

        `program` is the driver itself, for example the csi-multi of another virtual environment.
        """
        self.directory = directory
        self.socket = directory / f"{name}.sock"
        self.endpoint = f"unix://{self.socket}"
        self.log = directory / f"{name}.log"
        self._config = directory / f"{name}.yaml"
        self._config.write_text(config)
        self._mode = mode
        self._environment = environment
        self._command = (*wrapper, *program)

    def launch(self) -> None:
        """Start the driver (again) without waiting for it."""
        arguments = ("serve", "--config", str(self._config), "--mode", self._mode)
        environment = {"CSI_ENDPOINT": self.endpoint, **self._environment}
        with self.log.open("ab") as log:
            self.process = start(*self._command, *arguments, environment=environment, stderr=log)

    def start(self) -> Client:
        """Start the driver (again) and return a connected client. Raises NotServing."""
        self.launch()
        client = Client(f"unix:{self.socket}")
        ends = time.monotonic() + START_LIMIT
        while not _listens(client):
            if self.process.poll() is not None or time.monotonic() > ends:
                client.close()
                raise self._not_serving()
        return client

    def _not_serving(self) -> NotServing:
        """End the process, and return the error that says why it does not serve."""
        code = self.process.poll()
        state = (
            f"the driver did not listen within {START_LIMIT:g} s; its threads wait in {self._wait_channels()!r}"
            if code is None
            else f"the driver exited with code {code}"
        )
        self.kill()
        return NotServing(f"{state}:\n{self.log_tail()}")

    def _wait_channels(self) -> str:
        """Return the kernel functions that its threads wait in."""
        waits = (path.read_text() for path in Path(f"/proc/{self.process.pid}/task").glob("*/wchan"))
        return " ".join(sorted(waits))

    def stop(self) -> int:
        """Send SIGTERM, as a supervisor does, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_LIMIT)

    def kill(self) -> None:
        """Send SIGKILL, so that the driver cannot clean up."""
        self.process.kill()
        self.process.wait(timeout=STOP_LIMIT)

    def log_tail(self, size: int = 2000) -> str:
        return self.log.read_text(errors="replace")[-size:]


def _listens(client: Client) -> bool:
    try:
        client.wait(START_POLL)
    except TimeoutError:
        return False
    return True
