"""A real Nomad: one server and two clients, each client in a network of its own, in a directory of the tests.

Run it in namespaces of its own (mounts, processes, network), as `make nomad` does: with them ends whatever is left.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from . import network
from .jobs import NODES, USER

CGROUPS = Path("/sys/fs/cgroup")
PARENT = "csi-multi-test"
STOP = 60.0  # seconds until an agent must have ended
# What an agent would otherwise ask the network for, one after the other.
DENIED = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni,bridge"


class Agents:
    """Server and clients; `directory/NODE/nomad` is a client's data, `directory/NODE/host` the root of its own disk."""

    def __init__(self, directory: Path, program: str) -> None:
        self.directory, self._program = directory, program
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Start all. The directory becomes a shared mount, as the root of most hosts is."""
        assert socket.if_nameindex() == [(1, "lo")], "run this by `make nomad`, in namespaces of its own"
        subprocess.run(["mount", "--bind", self.directory, self.directory], check=True)
        subprocess.run(["mount", "--make-shared", self.directory], check=True)
        network.up(NODES)
        image(self.directory / "busybox")
        self.start("server", self._common("server", network.HUB) | {"server": {"enabled": True, "bootstrap_expect": 1}})
        for number, node in enumerate(NODES, 1):
            self._host(node)
            self.start(node, self._common(node, network.address(number)) | self._client(node))

    def start(self, name: str, config: dict[str, Any] | None = None) -> None:
        """Start an agent (again)."""
        file = self.directory / f"{name}.json"
        if config is not None:
            file.write_text(json.dumps(config))
        space = ["nsenter", f"--net=/run/netns/{name}"] if name in NODES else []
        with (self.directory / f"{name}.log").open("ab") as log:
            command = [*space, self._program, "agent", f"-config={file}"]
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, name: str) -> None:
        """End an agent without notice; its tasks go on."""
        self._running[name].kill()
        self._running.pop(name).wait()

    def down(self) -> None:
        """End all agents, and remove Nomad's cgroups: it leaves them."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(STOP)
        for parent in CGROUPS.glob(f"**/{PARENT}-*"):
            for group in sorted((parent, *parent.glob("**/")), reverse=True):
                group.rmdir()

    def left(self) -> list[str]:
        """Return what is left of Nomad when all has ended: processes, mounts, cgroups."""
        programs = ("nomad", "csi-multi", "busybox")
        commands = [file.read_text().strip() for file in Path("/proc").glob("[0-9]*/comm")]
        found = [command for command in commands if command.startswith(programs)]
        return [*found, *self.mounts(), *map(str, CGROUPS.glob(f"**/{PARENT}-*"))]

    def mounts(self) -> list[str]:
        """Return what is mounted below the directory."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return sorted(
            target for target in (line.split()[4] for line in lines) if target.startswith(f"{self.directory}/")
        )

    def images(self, node: str) -> list[str]:
        """Return the files of the volumes and snapshots of a node."""
        storage = self.directory / node / "host/var/lib/csi-multi/scratch"
        return sorted(file.name for kind in ("volumes", "snapshots") for file in storage.glob(f"{kind}/*"))

    def published(self, node: str, allocation: str, volume: str) -> Path:
        """Return the path where a volume is published for an allocation."""
        (path,) = (self.directory / node / "nomad/client/csi/node/csi-multi/per-alloc" / allocation / volume).iterdir()
        return path

    def _host(self, node: str) -> None:
        """Make what docs/deploy.md asks of a node, and the names that a DNS would know."""
        host = self.directory / node / "host"
        (host / "var/lib/csi-multi").mkdir(parents=True)
        (host / "etc").mkdir()
        names = [f"{network.address(number)} {name}.node.consul\n" for number, name in enumerate(NODES, 1)]
        (host / "etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(names))

    def _common(self, name: str, address: str) -> dict[str, Any]:
        data = str(self.directory / name / "nomad")
        return {
            "name": name,
            "data_dir": data,
            "bind_addr": address,
            "log_level": "DEBUG",
            "leave_on_terminate": False,
            "disable_update_check": True,
        }

    def _client(self, node: str) -> dict[str, Any]:
        client = {
            "enabled": True,
            "servers": [f"{network.HUB}:4647"],
            "network_interface": "eth0",
            "cgroup_parent": f"{PARENT}-{node}",
            "cpu_total_compute": 4000,
            "chroot_env": {str(self.directory / "busybox" / name): f"/{name}" for name in ("bin", "etc")},
            "options": {"fingerprint.denylist": DENIED},
            "meta": {"host": str(self.directory / node / "host")},
        }
        return {"client": client, "plugin": [{"raw_exec": [{"config": [{"enabled": True}]}]}]}


def image(directory: Path) -> None:
    """Make what the tests need of the image busybox:1."""
    programs, settings = directory / "bin", directory / "etc"
    programs.mkdir(parents=True)
    settings.mkdir()
    passwd = settings / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + f"{USER}:x:0:0::/:/bin/sh\n")
    subprocess.run(["mount", "--bind", passwd, "/etc/passwd"], check=True)  # Nomad asks for the user there
    shutil.copy(shutil.which("busybox") or "busybox", programs / "busybox")
    for applet in ("sh", "date", "cat", "sleep", "touch"):
        (programs / applet).symlink_to("busybox")
