"""A driver process of its own for one instance: a configuration with nothing else, a socket, a log."""

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
from csi_multi.process.driver_process import START, DriverProcess
from csi_multi.rpc import endpoint
from csi_multi.rpc.client import Client

from .assertions import expect

SOCKET = "csi.sock"
LOG_TAIL = 4000  # bytes


def only_instance(config: Config, instance: str) -> Config:
    """Return the configuration with one instance only, everything advertised. Raises ConfigError."""
    found = [section for section in config.instances if section.name == instance]
    if not found:
        names = [section.name for section in config.instances]
        raise ConfigError(f"{config.document.file}: {unknown('--backend', instance, names, 'instance')}")
    driver = msgspec.structs.replace(config.driver, default_backend=instance, alpha=True, log_style="json")
    return Config(config.document, driver, (found[0],))


def as_yaml(config: Config) -> str:
    """Return a file that loads as this configuration."""
    backends: dict[str, Any] = {section.name: {"kind": section.kind, **section.values} for section in config.instances}
    return yaml.safe_dump({"driver": msgspec.to_builtins(config.driver), "backends": backends}, sort_keys=False)


class InstanceDriver:
    """`csi-multi serve` in a short temporary directory that only its owner can read: the file may hold secrets."""

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
        end = time.monotonic() + START
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
        expect(code == 0, f"the driver ended with exit code {code} after SIGTERM; its log is {self.log}")
        expect(not self.process.socket.exists(), f"the driver left its socket {self.process.socket} behind")

    def mark(self) -> None:
        """Remember where the logs in the directory end now."""
        self._marked = {file: file.stat().st_size for file in self.directory.glob("*.log")}

    def since_mark(self) -> str:
        """Return the end of what was logged since the mark."""
        return "".join(_tail(file, self._marked.get(file, 0)) for file in sorted(self.directory.glob("*.log")))

    def forget(self, *, logs: bool) -> None:
        """Remove what was written; without `logs`, all but the logs: the configuration may hold secrets."""
        for file in self.directory.glob("*.yaml"):
            file.unlink()
        if logs:
            shutil.rmtree(self.directory)


def _tail(file: Path, start: int) -> str:
    with file.open("rb") as log:
        log.seek(max(start, file.stat().st_size - LOG_TAIL))
        return log.read().decode(errors="replace")


def _directory() -> Path:
    """Return a new directory in which a socket's path is not too long."""
    directory = Path(tempfile.mkdtemp(prefix="csi-multi-"))
    if len(str(directory / SOCKET).encode()) > endpoint.PATH_LIMIT:
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="csi-multi-", dir="/tmp"))
    return directory
