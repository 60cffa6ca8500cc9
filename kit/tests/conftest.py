"""Tests of the kit: a backend in memory must pass, and every deliberately broken backend must fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing import memory
from csi_multi_testing.check import CheckState, Outcome, run
from csi_multi_testing.checks import CHECKS
from csi_multi_testing.context import in_process
from csi_multi_testing.storage import CLUSTER, DRIVER, NODE, Storage

from csi_multi.config.settings import Driver
from csi_multi.host.command import LocalHost
from csi_multi.loading.instance import Instance
from csi_multi.loading.registry import Registry
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.server import build_server

Fails = Callable[[Callable[..., None], Any, str], None]


@pytest.fixture
def judged() -> Callable[[Callable[..., None], Any], Outcome]:
    """Run one check on a class derived from MemoryBackend, or on what a function returns as Storage."""

    def judged(check: Callable[..., None], subject: Any) -> Outcome:
        storage = memory.storage(subject) if isinstance(subject, type) else subject()
        return run(CHECKS[check.__name__.replace("_", " ")], in_process(storage))

    return judged


@pytest.fixture
def fails(judged: Callable[..., Outcome]) -> Fails:
    """Require that a check fails on a broken backend, with these words in its message."""

    def fails(check: Callable[..., None], subject: Any, words: str) -> None:
        outcome = judged(check, subject)
        assert outcome.state is CheckState.FAILED, f"{outcome.state.value}: {outcome.text}"
        assert words in outcome.text

    return fails


class InProcess:
    """A driver that is a server of this process; killed, it only loses its connections and its backend."""

    def __init__(self, storage: Storage, directory: Path) -> None:
        self.directory = directory
        self.log = ""
        self._address = f"unix:{directory}/csi.sock"
        self._storage = storage

    def start(self) -> Client:
        instances = Registry([Instance("kit", "memory", self._storage.connect(LocalHost()))])
        instances.get("kit").resume()
        driver = Driver(name=DRIVER, cluster=CLUSTER, node=NODE, alpha=True, workers=8)
        self._server = build_server(driver, instances, LocalHost(), Mode.ALL)
        assert self._server.add_insecure_port(self._address)
        self._server.start()
        return Client(self._address, timeout=20)

    def kill(self) -> None:
        self._server.stop(0).wait()

    def close(self) -> None:
        self.kill()

    def mark_logs(self) -> None:
        """Do nothing: the log is read as a whole."""

    def logs_since_mark(self) -> str:
        return self.log

    def remove_files(self, *, logs: bool) -> None:
        """Do nothing: it wrote no files."""


@pytest.fixture(scope="session")
def driver_of() -> type[InProcess]:
    """Make a driver for a client over CSI: driver_of(storage, directory)."""
    return InProcess
