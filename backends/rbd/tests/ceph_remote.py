"""A cluster outside of the guest in which a test runs: what reaches it, and what is done outside for it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

from csi_multi.process.driver_process import DriverProcess

from .ceph import Cluster
from .ceph_commands import Commands
from .relay import Relay

DAEMONS = ("mon", "mgr", "osd")
ACTIONS = ("start", "stop", "kill", "pause", "resume")
VARIABLE = "CSI_RBD_CLUSTERS"  # in the guest: where the outside listens, and its clusters' coordinates


class Outside:
    """What the guest may ask for; a cluster is named by its place in the list."""

    def __init__(self, clusters: list[Cluster], address: str, directory: Path) -> None:
        self._clusters = clusters
        self._address = address
        self._directory = directory
        self._undo = ExitStack()

    def execute(self, number: int, command: list[str], stdin: str) -> list[str]:
        status, stdout, stderr = self._clusters[number].execute(tuple(command), stdin)
        return [str(status), stdout, stderr]

    def daemon(self, number: int, name: str, action: str) -> bool:
        assert name in DAEMONS, name
        assert action in ACTIONS, action
        getattr(getattr(self._clusters[number], name), action)()
        return True

    def logs(self, number: int) -> str:
        return self._clusters[number].logs()

    def start_controller(self, config: str) -> str:
        """Start a driver's controller out here, where commands are quick, and return how gRPC reaches it."""
        self._driver = DriverProcess(self._directory, config, mode="controller")
        self._driver.start().close()
        self._undo.callback(self._driver.kill)
        relay = self._undo.enter_context(closing(Relay(self._address, self._driver.socket)))
        return relay.endpoint

    def stop_controller(self) -> list[str]:
        """End it as a supervisor does, and return its exit status and the end of its log."""
        status = self._driver.stop()
        self.close()
        return [str(status), self._driver.log_tail(20_000)]

    def close(self) -> None:
        self._undo.close()


@contextmanager
def served(clusters: list[Cluster], address: str, directory: Path) -> Iterator[str]:
    """Serve them at the address, and yield the text for VARIABLE."""
    outside = Outside(clusters, address, directory)
    with SimpleXMLRPCServer((address, 0), logRequests=False) as server:
        server.register_instance(outside)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            names = ("address", "fsid", "key", "keyring")
            facts = [{name: str(getattr(one, name)) for name in names} for one in clusters]
            yield json.dumps({"url": f"http://{address}:{server.server_address[1]}", "clusters": facts})
        finally:
            server.shutdown()
            thread.join()
            outside.close()


class RemoteDaemon:
    def __init__(self, url: str, number: int, name: str) -> None:
        self._url = url
        self._number = number
        self._name = name

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def kill(self) -> None:
        self._do("kill")

    def pause(self) -> None:
        self._do("pause")

    def resume(self) -> None:
        self._do("resume")

    def _do(self, action: str) -> None:
        with ServerProxy(self._url) as outside:
            outside.daemon(self._number, self._name, action)


class Remote(Commands):
    """One of the clusters outside. Its commands run there, where they are quick; the driver's run here."""

    def __init__(self, number: int, directory: Path) -> None:
        found = json.loads(os.environ[VARIABLE])
        facts = found["clusters"][number]
        self._url = found["url"]
        self._number = number
        self.address = facts["address"]
        self.fsid = facts["fsid"]
        self.key = facts["key"]
        self.keyring_outside = facts["keyring"]
        self.keyring = directory / f"{self.fsid}.keyring"
        self.keyring.touch(0o600)
        self.keyring.write_text(f"[client.{self.user}]\nkey = {self.key}\n")
        self.mon, self.mgr, self.osd = (RemoteDaemon(self._url, number, name) for name in DAEMONS)

    def execute(self, command: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        with ServerProxy(self._url) as outside:
            status, stdout, stderr = outside.execute(self._number, list(command), stdin)  # type: ignore[misc]
        return int(str(status)), str(stdout), str(stderr)

    def logs(self) -> str:
        with ServerProxy(self._url) as outside:
            return str(outside.logs(self._number))

    @contextmanager
    def controller(self, config: str) -> Iterator[str]:
        """Run a driver's controller outside (Outside.start_controller), and yield its endpoint."""
        with ServerProxy(self._url) as outside:
            yield str(outside.start_controller(config))
            status, log = outside.stop_controller()  # type: ignore[misc]
        print(log)
        assert status == "0", f"the controller ended with {status}"
