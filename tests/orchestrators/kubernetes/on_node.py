"""A node of a cluster on this machine, as tests look into it and kill in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from .build import PROGRAMS
from .node import PID

STORAGE = "/var/lib/csi-multi"  # has the directory of each instance
SHARED = "shared"  # the directory in it that all nodes have


@dataclass(frozen=True, slots=True)
class OnNode:
    name: str
    home: Path

    @property
    def pid(self) -> int:
        """Its first process: another one after the node was switched off and on."""
        return int((self.home / PID).read_text())

    def traces(self) -> set[str]:
        """Return what volumes are on the node: files of the loop backend, and mounts of volumes.

        The files of the backend itself are in an instance's directory, not below it, and appear with the first volume.
        """
        found = map(Path, self.run("find", STORAGE, "-type", "f", "-printf", r"%P\n").splitlines())
        volumes = (file for file in found if file.parts[2:] or file.parts[0] == SHARED)
        files = {f"file {file}" for file in volumes if not file.name.startswith(".")}
        return files | {f"mount {place}" for place in self.mounts()}

    def mounts(self) -> list[str]:
        """Return where volumes are mounted: once for the node, and once for each pod."""
        lines = self.run("cat", "/proc/self/mounts").splitlines()
        return [line.split()[1] for line in lines if "/kubernetes.io~csi/" in line or "/kubernetes.io/csi/" in line]

    def images(self) -> set[str]:
        """Return the files that hold volumes' bytes."""
        return {trace for trace in self.traces() if "/volumes/" in trace and trace.endswith("/image")}

    def kill(self, container: str) -> bool:
        """kill -9 the process of a container; return whether it ran."""
        pid = self.process(container)
        if pid:
            self.run("sh", "-c", 'kill -9 "$1" || :', "sh", pid)
        return bool(pid)

    def process(self, container: str) -> str:
        """Return the process of a container, as the node knows it; empty if it does not run."""
        tasks = (line.split() for line in self.containers("task", "ls").splitlines()[1:])
        return next((pid for name, pid, state in tasks if name == container and state == "RUNNING"), "")

    def containers(self, *words: str) -> str:
        """Run containerd's own command; return what it prints."""
        return self.run(str(PROGRAMS / "ctr"), "-n", "k8s.io", *words)

    def run(self, *command: str) -> str:
        return subprocess.run(self.words(*command), capture_output=True, text=True, check=True).stdout

    def words(self, *command: str) -> list[str]:
        """Return the command that runs another one on the node."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-u", "-i", "-p", "--", *command]
