"""A driver process for one instance: its configuration, socket and log in a temporary directory."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import yaml

from csi_multi.config.document import ConfigError
from csi_multi.config.settings import Config
from csi_multi.contract import unknown
from csi_multi.process.driver_process import START_LIMIT, DriverProcess
from csi_multi.rpc import endpoint
from csi_multi.rpc.client import Client

from .assertions import expect

SOCKET = "csi.sock"
LOG_TAIL = 4000  # bytes


def only_instance(config: Config, instance: str) -> Config:
    """Return the configuration with this instance only, and alpha features on. Raises ConfigError."""
    found = [section for section in config.instances if section.name == instance]
    if not found:
        names = [section.name for section in config.instances]
        raise ConfigError(f"{config.document.file}: {unknown('--backend', instance, names, 'instance')}")
    driver = msgspec.structs.replace(config.driver, default_backend=instance, alpha=True, log_style="json")
    return Config(config.document, driver, (found[0],))


def as_yaml(config: Config) -> str:
    """Return the text of a configuration file that loads as this configuration."""
    backends: dict[str, Any] = {section.name: {"kind": section.kind, **section.values} for section in config.instances}
    return yaml.safe_dump({"driver": msgspec.to_builtins(config.driver), "backends": backends}, sort_keys=False)


class InstanceDriver:
    """`csi-multi serve` in a temporary directory that only its owner can read: the configuration may hold secrets."""

    def __init__(self, config: Config) -> None:
        self.directory = _directory()
        # The operator's environment may hold credentials, a proxy, or a PATH to a vendor's programs.
        environment = {name: value for name, value in os.environ.items() if name != "CSI_ENDPOINT"}
        name = SOCKET.removesuffix(".sock")
        self.process = DriverProcess(self.directory, as_yaml(config), name=name, environment=environment)
        self.log = self.process.log
        self.endpoint = self.process.endpoint
        self._marked: dict[Path, int] = {}

    def start(self) -> Client:
        """Raises NotServing."""
        client = self.process.start()
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                client.Probe()
                return client
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        code = self.process.stop()
        expect(code == 0, f"the driver ended with exit code {code} after SIGTERM, the rule is 0; its log is {self.log}")
        expect(
            not self.process.socket.exists(), f"the driver ended and did not remove its socket {self.process.socket}"
        )

    def mark_logs(self) -> None:
        """Record where the logs in the directory end now."""
        self._marked = {file: file.stat().st_size for file in self.directory.glob("*.log")}

    def logs_since_mark(self) -> str:
        """Return the end of what was logged since mark_logs."""
        return "".join(_tail(file, self._marked.get(file, 0)) for file in sorted(self.directory.glob("*.log")))

    def remove_files(self, *, logs: bool) -> None:
        """Remove the directory; without `logs`, only the configuration, which may hold secrets."""
        for file in self.directory.glob("*.yaml"):
            file.unlink()
        if logs:
            shutil.rmtree(self.directory)


def _tail(file: Path, start: int) -> str:
    with file.open("rb") as log:
        log.seek(max(start, file.stat().st_size - LOG_TAIL))
        return log.read().decode(errors="replace")


def _directory() -> Path:
    """Return a new directory with a path that is short enough for a socket."""
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-"))
    if len(str(directory / SOCKET).encode()) > endpoint.PATH_LIMIT:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="csi-multi-", dir="/tmp"))
    return directory
