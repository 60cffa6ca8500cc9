"""Volumes of two instances that are written to alternately, and a driver over them that can be killed. Needs root."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from csi_multi.commands.certificates import CertificateAuthority
from csi_multi.config.cluster import CONTROLLER_IDENTITY, NODE_IDENTITY, NODE_PLACEHOLDER
from csi_multi.host.command import LocalHost
from csi_multi.process.driver_process import DriverProcess
from csi_multi.rpc.client import Client

MIB = 1 << 20
BLOCK = 4096
LONG = 60.0
NOT_FINAL = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)
MODE = {"access_mode": {"mode": "SINGLE_NODE_WRITER"}}

CONFIG = """
driver: {{name: groups.csi-multi.example, node: n1, log_level: info, metrics: '127.0.0.1:0'}}
backends:
  one: {{kind: loop, directory: {directory}/disk/one, reserve_percent: 0}}
  two: {{kind: loop, directory: {directory}/disk/two, reserve_percent: 0}}
"""
CLUSTER = """
cluster:
  listen: 127.0.0.1:{port}
  nodes: {{n1: "127.0.0.1:{port}"}}
  tls: {{ca: {tls}/ca.pem, certificate: {tls}/certificate.pem, key: {tls}/key.pem}}
"""

# The driver, with notes of its own. DIE_AT=3 kills it at its third copy, `mark` when the group's mark is to be deleted;
# WAIT_AT=3 makes its third copy wait for the file `go`.
PROGRAM = """
import os, pathlib, signal, sys, time
from csi_multi.commands import cli
from csi_multi.node import freeze_notes
from csi_multi_loop.client import Client
from csi_multi_loop.backend import LoopBackend

copies, copy, delete = 0, Client.copy, LoopBackend.delete_snapshot
die_at, wait_at = os.environ.get("DIE_AT", ""), os.environ.get("WAIT_AT", "")
directory = pathlib.Path({directory!r})

def counted(*words, **options):
    global copies
    copies += 1
    if die_at == str(copies):
        os.kill(os.getpid(), signal.SIGKILL)
    if wait_at == str(copies):
        (directory / "copying").touch()
        while not (directory / "go").exists():
            time.sleep(0.02)
    return copy(*words, **options)

def mortal(self, handle, secrets):
    if die_at == "mark" and handle.endswith("-pending"):
        os.kill(os.getpid(), signal.SIGKILL)
    return delete(self, handle, secrets)

freeze_notes.NOTES = directory / "notes"
Client.copy, LoopBackend.delete_snapshot = counted, mortal
sys.exit(cli.main())
"""

# Writes 1 into the first file, 1 into the second, 2 into the first and so on, each durable before the next.
WRITER = """
import mmap, os, sys
block = mmap.mmap(-1, 4096)
files = [os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_DSYNC) for path in sys.argv[1:]]
number = 0
while True:
    number += 1
    block[:8] = number.to_bytes(8, "big")
    for file in files:
        os.pwrite(file, block, 0)
"""


class Clients:
    """Sends the node's RPCs to the node, and all others to the controller where there is one."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    def __getattr__(self, rpc: str) -> Any:
        role = "controller" if "controller" in self._clients and not rpc.startswith("Node") else "node"
        return getattr(self._clients[role], rpc)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class World:
    """A driver with two instances on one filesystem that can share blocks, and a volume of each."""

    def __init__(self, directory: Path, *, cluster: bool = False) -> None:
        """`cluster`: a controller and a node as processes of their own, else one for both."""
        self.directory = directory
        self._cluster = cluster
        self._port = free_port() if cluster else 0
        self._drivers: dict[str, DriverProcess] = {}
        self._clients: dict[str, Client] = {}
        self.client = Clients(self._clients)
        self.volumes: list[str] = []
        self.writers: list[subprocess.Popen[bytes]] = []
        if cluster:
            authority = CertificateAuthority(directory / "tls", LocalHost(), days=2)
            authority.sign("controller", CONTROLLER_IDENTITY)
            authority.sign("node", NODE_IDENTITY.replace(NODE_PLACEHOLDER, "n1"))
            self.start_controller()

    def start_controller(self) -> None:
        """Start (again) the controller of the cluster."""
        self._start("controller", {})

    def kill_controller(self) -> None:
        self._clients["controller"].close()
        self._drivers["controller"].kill()

    def start(self, **environment: str) -> DriverProcess:
        """Start (again) the driver that has the volumes."""
        self._start("node" if self._cluster else "all", environment)
        return self._drivers["node"]

    def _start(self, mode: str, environment: Mapping[str, str]) -> None:
        config = CONFIG.format(directory=self.directory)
        if self._cluster:
            config += CLUSTER.format(port=self._port, tls=self.directory / "tls" / mode)
        role = "controller" if mode == "controller" else "node"
        self._drivers[role] = DriverProcess(
            self.directory,
            config,
            mode=mode,
            name=role,
            program=(sys.executable, "-c", PROGRAM.format(directory=str(self.directory))),
            environment={**os.environ, **environment},
        )
        self._clients[role] = self._drivers[role].start()

    @property
    def log(self) -> str:
        return self._drivers["node"].log.read_text()

    def metrics(self) -> str:
        (address,) = {
            line["address"] for line in map(json.loads, self.log.splitlines()) if "metrics" in line["message"]
        }
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=LONG) as answer:
            return str(answer.read().decode())

    def kill(self) -> None:
        self._clients["node"].close()
        self._drivers["node"].kill()

    def died(self) -> None:
        assert self._drivers["node"].process.wait(LONG) == -signal.SIGKILL
        self._clients["node"].close()

    def volume(self, instance: str, *, block: bool = False) -> Path:
        """Create, stage and publish a volume; return where it is."""
        access: dict[str, Any] = {"block": {}} if block else {"mount": {"fs_type": "ext4"}}
        capability = {**MODE, **access}
        made = self.client.CreateVolume(
            name=f"v{len(self.volumes)}",
            parameters={"backend": instance},
            capacity_range={"required_bytes": 64 * MIB},
            volume_capabilities=[capability],
        ).volume
        self.volumes.append(made.volume_id)
        staging, target = self.paths(made.volume_id)
        staging.mkdir()
        use = {"volume_id": made.volume_id, "staging_target_path": str(staging), "volume_capability": capability}
        self.client.NodeStageVolume(**use, volume_context=made.volume_context)
        self.client.NodePublishVolume(**use, target_path=str(target), volume_context=made.volume_context)
        return target

    def paths(self, volume: str) -> tuple[Path, Path]:
        """Return where a volume is staged and published."""
        number = self.volumes.index(volume)
        return self.directory / f"staging-{number}", self.directory / f"target-{number}"

    def write(self, *files: Path) -> None:
        """Begin to write increasing numbers into all files, alternately."""
        self.writers.append(subprocess.Popen([sys.executable, "-c", WRITER, *map(str, files)]))

    def cut(self, name: str | None = None, parameters: Any = None) -> Any:
        return self.client.CreateVolumeGroupSnapshot(
            name=name or "g", source_volume_ids=self.volumes, parameters=parameters or {}
        ).group_snapshot

    def cut_again(self) -> Any:
        """Cut until it succeeds, as an orchestrator does."""
        deadline = time.monotonic() + LONG
        while True:
            try:
                return self.cut()
            except grpc.RpcError as error:
                if error.code() not in NOT_FINAL or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def delete(self, group: Any) -> None:
        members = [one.snapshot_id for one in group.snapshots]
        self.client.DeleteVolumeGroupSnapshot(group_snapshot_id=group.group_snapshot_id, snapshot_ids=members)

    def snapshots(self) -> list[str]:
        return [entry.snapshot.snapshot_id for entry in self.client.ListSnapshots().entries]

    def image(self, snapshot_id: str) -> Path:
        instance, _, leaf = snapshot_id.split("/")
        return self.directory / "disk" / instance / "snapshots" / leaf / "image"

    def close(self) -> None:
        (self.directory / "go").touch()
        for writer in self.writers:
            writer.kill()
        if self._drivers["node"].process.poll() is not None:
            self.start()  # which thaws
        for writer in self.writers:
            writer.wait(LONG)
        for volume in self.volumes:
            staging, target = self.paths(volume)
            self.client.NodeUnpublishVolume(volume_id=volume, target_path=str(target))
            self.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(staging))
        for client in self._clients.values():
            client.close()
        for driver in self._drivers.values():
            driver.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def now(file: Path) -> int:
    """Return the number that is in a file now."""
    descriptor, block = os.open(file, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, BLOCK)
    os.preadv(descriptor, [block], 0)
    os.close(descriptor)
    return int.from_bytes(block[:8], "big")


def advances(file: Path) -> None:
    """Wait until the writer of a file goes on."""
    before = now(file)
    until(lambda: now(file) > before)
