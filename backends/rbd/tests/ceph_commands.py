"""Operations of a test on a cluster as its admin, wherever its daemons run: commands, namespaces, state, faults."""

from __future__ import annotations

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, AnyStr, Protocol

from . import ceph_namespace

CRASHES = 3  # times in a row that a command may crash: librados does at its end, once in thousands of commands
START = 60.0  # seconds for the cluster to be there, or there again


class CephFailed(Exception):
    """A command of the tests' own failed, or the cluster did not get where it should."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def again_after_a_crash(execute: Callable[[], tuple[int, AnyStr, AnyStr]]) -> tuple[int, AnyStr, AnyStr]:
    """Run a command that is repeatable; return its last status, output and errors."""
    for _ in range(CRASHES):
        status, stdout, stderr = execute()
        if status >= 0:
            break
    return status, stdout, stderr


class Runs(Protocol):
    """A daemon, see ceph_daemon.py."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Commands(ABC):
    """A cluster, how its driver finds it, and what a test may do to it."""

    address: str  # its monitor's
    fsid: str
    pool: str = "k8s"
    user: str = "csi"  # the driver's, without "client."
    key: str
    keyring: Path  # file with that key
    mon: Runs
    mgr: Runs
    osd: Runs

    @property
    def monitors(self) -> tuple[str, ...]:
        return (self.address,)

    @abstractmethod
    def execute(self, command: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        """Run a command, with the admin's rights when it asks for none else: status, output, errors."""

    @abstractmethod
    def logs(self) -> str:
        """Return the end of what each daemon wrote."""

    def run(self, *command: str, stdin: str = "") -> str:
        """Raises CephFailed."""
        try:
            status, stdout, stderr = again_after_a_crash(lambda: self.execute(command, stdin))
        except subprocess.TimeoutExpired as error:
            raise CephFailed(f"{error}\n{self.logs()}") from None
        if status:
            raise CephFailed(f"{' '.join(command)}: {status}: {stderr}{stdin}", status)
        return stdout

    def ceph(self, *words: str) -> str:
        return self.run("ceph", *words)

    def ceph_each(self, *lines: str) -> None:
        """Run several commands of ceph in one process: each process costs a sixth of a second."""
        self.run("ceph", stdin="\n".join(lines) + "\n")

    def rbd(self, *words: str) -> str:
        return self.run("rbd", *words)

    def rados(self, *words: str) -> str:
        return self.run("rados", *words)

    # Namespaces of the pool.

    def add(self, namespace: str) -> None:
        self.rbd("namespace", "create", "--pool", self.pool, "--namespace", namespace)

    def remove(self, namespace: str) -> None:
        """Remove it with whatever is in it."""
        ceph_namespace.empty(self, namespace)
        self.rbd("namespace", "remove", "--pool", self.pool, "--namespace", namespace)

    def everything(self, namespace: str) -> list[str]:
        """Return images, snapshots, trash and watchers: equal before and after what leaves nothing."""
        return ceph_namespace.everything(self, namespace)

    def watched(self, namespace: str) -> list[str]:
        return ceph_namespace.watched(self, namespace)

    # Its state.

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ceph("status", "--format", "json"))
        return found

    def serves(self) -> bool:
        """Say whether everything is up and the manager has counted what is there."""
        status = self.status()
        pgs = status["pgmap"]
        states = {one["state_name"] for one in pgs["pgs_by_state"]}
        return bool(
            status["osdmap"]["num_up_osds"]
            and status["mgrmap"]["available"]
            and states == {"active+clean"}
            and pgs["bytes_total"]
        )

    def wait(self, reached: Callable[[], bool], what: str, seconds: float = START) -> None:
        """Raises CephFailed with the daemons' logs."""
        ends = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > ends:
                raise CephFailed(f"the cluster did not {what} in {seconds:g} s: {self.status()}\n{self.logs()}")
            time.sleep(0.05)
