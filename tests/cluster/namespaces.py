"""A controller and nodes as processes, each in a network namespace of its own, with mutual TLS between them.

The controller's namespace has a bridge, to which every node is tied by a pair of virtual Ethernet devices. All
names carry the number of this process, so that runs side by side do not meet. Needs root.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import CONTROLLER_IDENTITY, NODE_IDENTITY, NODE_PLACEHOLDER
from csi_multi.host.command import LocalHost
from csi_multi.process.driver_process import DriverProcess

NAMES = ("node-1", "node-2", "node-3")
PORT = 9810
CONFIG = """\
driver:
  {{name: cluster.csi-multi.example, node: {node}, default_backend: scratch, default_fs_type: {fs_type},
    alpha: true, log_level: debug}}
backends:
  scratch: {{kind: loop, directory: {directory}, reserve_percent: 0, reserve_bytes: {reserve}}}
cluster:
  listen: 0.0.0.0:9810
  nodes: {{node-1: 198.51.100.11:9810, node-2: 198.51.100.12:9810, node-3: 198.51.100.13:9810}}
  tls: {{ca: {tls}/ca.pem, certificate: {tls}/certificate.pem, key: {tls}/key.pem}}
  attach_required: true
"""


class Network:
    """The namespaces, and a driver in each."""

    def __init__(
        self, directory: Path, reserve: Mapping[str, int] = MappingProxyType({}), fs_type: str = "xfs"
    ) -> None:
        """`reserve`: bytes that a node keeps free, 0 where it is not named."""
        self._fs_type = fs_type
        self.directory = directory
        self.host = LocalHost()
        self.authority = CertificateAuthority(directory / "tls", self.host, days=2)
        self.drivers = {name: self._driver(name, reserve.get(name, 0)) for name in ("controller", *NAMES)}
        self.clients: dict[str, Any] = {}

    def storage(self, node: str) -> Path:
        return self.directory / f"storage-{node}"

    def volumes(self, node: str) -> list[str]:
        """Return the leaves of the volumes whose images are on a node, snapshots left out."""
        return sorted(file.name for file in self.storage(node).glob("volumes/*"))

    def begun(self, name: str) -> int:
        """Return how many RPCs a driver has begun."""
        return self.drivers[name].log.read_text(errors="replace").count(' begins"')

    def start(self, name: str) -> Any:
        """Start a driver (again); return a client of its socket."""
        if name in self.clients:
            self.clients[name].close()
        self.clients[name] = self.drivers[name].start()
        return self.clients[name]

    @contextmanager
    def frozen(self, node: str) -> Iterator[Callable[[], None]]:
        """The driver on the node takes what comes in, and does nothing, until the end or until this is called."""
        process = self.drivers[node].process

        def thaw() -> None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)  # until then another thread of it may still answer
        try:
            yield thaw
        finally:
            thaw()

    @contextmanager
    def cut(self, node: str) -> Iterator[None]:
        """Nothing passes between the node and the controller."""
        self._ip("-n", self.space("controller"), "link", "set", f"to-{node}", "down")
        try:
            yield
        finally:
            self._ip("-n", self.space("controller"), "link", "set", f"to-{node}", "up")

    @contextmanager
    def killed(self, node: str) -> Iterator[None]:
        self.drivers[node].kill()
        try:
            yield
        finally:
            self.start(node)

    def run(self, node: str, *argv: str) -> Any:
        """Run a command in a node's network."""
        return self.host.run("nsenter", f"--net=/run/netns/{self.space(node)}", *argv)

    def space(self, name: str) -> str:
        return f"csi{os.getpid()}-{name}"

    def up(self) -> None:
        """Make the namespaces, and start all drivers."""
        for name in self.drivers:
            self._ip("netns", "add", self.space(name))
            self._ip("-n", self.space(name), "link", "set", "lo", "up")
        hub = self.space("controller")
        self._ip("-n", hub, "link", "add", "hub", "type", "bridge")
        self._ip("-n", hub, "address", "add", "198.51.100.1/24", "dev", "hub")
        self._ip("-n", hub, "link", "set", "hub", "up")
        for number, name in enumerate(NAMES, 11):
            pair = ("type", "veth", "peer", "name", "eth0", "netns", self.space(name))
            self._ip("-n", hub, "link", "add", f"to-{name}", *pair)
            self._ip("-n", hub, "link", "set", f"to-{name}", "master", "hub", "up")
            self._ip("-n", self.space(name), "address", "add", f"198.51.100.{number}/24", "dev", "eth0")
            self._ip("-n", self.space(name), "link", "set", "eth0", "up")
        for name in (*NAMES, "controller"):
            self.start(name)

    def down(self) -> None:
        """End all drivers and remove the namespaces, whatever is left of them."""
        for client in self.clients.values():
            client.close()
        for driver in self.drivers.values():
            if hasattr(driver, "process") and driver.process.poll() is None:
                driver.process.send_signal(signal.SIGCONT)
                driver.kill()
        for name in self.drivers:
            self._ip("netns", "delete", self.space(name), ok=(0, 1))

    def _driver(self, name: str, reserve: int) -> DriverProcess:
        mode = "controller" if name == "controller" else "node"
        place = name if name == "controller" else f"nodes/{name}"
        tls = self.authority.sign(
            place, CONTROLLER_IDENTITY if name == "controller" else NODE_IDENTITY.replace(NODE_PLACEHOLDER, name)
        )
        config = CONFIG.format(node=name, directory=self.storage(name), reserve=reserve, tls=tls, fs_type=self._fs_type)
        wrapper = ("nsenter", f"--net=/run/netns/{self.space(name)}")
        return DriverProcess(self.directory, config, mode=mode, name=name, wrapper=wrapper)

    def _ip(self, *words: str, ok: tuple[int, ...] = (0,)) -> None:
        self.host.run("ip", *words, ok=ok)
