"""The whole driver with one lvm instance in this process, behind its socket, with a door that counts.

It is in this process so that the lvm processes of every RPC, and the time they take, can be told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_multi.config.settings import load_config
from csi_multi.contract import TIME_LIMIT, Result
from csi_multi.host.command import LocalHost
from csi_multi.loading.loader import load_instances
from csi_multi.rpc.capabilities import Mode
from csi_multi.rpc.client import Client
from csi_multi.rpc.server import build_server

LONG = 600.0  # seconds for an RPC in a slow guest
CONFIG = """\
driver: {name: bench.csi-multi.example, node: bench-node, log_style: json, log_level: error, check_seconds: 86400}
backends:
  disks:
    {kind: lvm, volume_group: %s, thin_pool: %s, reserve_percent: 0, overprovision: 1000, min_size: 4194304}
"""


class Door(LocalHost):
    """The machine, and a note of every lvm command. One RPC at a time."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.seconds = 0.0  # that they took, processes and their start

    def forget(self) -> None:
        self.commands, self.seconds = [], 0.0

    def run(
        self, *argv: str, stdin: str | None = None, ok: tuple[int, ...] = (0,), timeout: float = TIME_LIMIT
    ) -> Result:
        if argv[0] != "lvm":
            return super().run(*argv, stdin=stdin, ok=ok, timeout=timeout)
        self.commands.append(argv[1])
        began = time.perf_counter()
        try:
            return super().run(*argv, stdin=stdin, ok=ok, timeout=timeout)
        finally:
            self.seconds += time.perf_counter() - began


@contextmanager
def driver(directory: Path, group: str, pool: str, door: Door) -> Iterator[Client]:
    """Serve for the block. The instance is not checked in the background: that would run commands of its own."""
    file, socket = directory / "driver.yaml", directory / "driver.sock"
    file.write_text(CONFIG % (group, pool))
    settings = load_config(file)
    instances = load_instances(settings, door)
    server = build_server(settings.driver, instances, door, Mode.ALL)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    client = Client(f"unix:{socket}", timeout=LONG)
    try:
        client.wait(timeout=60)
        yield client
    finally:
        client.close()
        server.stop(None).wait()
        instances.close()
