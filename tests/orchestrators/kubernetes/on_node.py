"""A node of a cluster on this machine, as tests look into it and kill in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from .build import PROGRAMS

STORAGE = "/var/lib/csi-multi"  # has the directory of each loop instance


@dataclass(frozen=True, slots=True)
class OnNode:
    name: str
    pid: int  # of its first process
    home: Path

    def traces(self) -> set[str]:
        """Return what volumes are on the node: files of the loop backend, and mounts of volumes.

        The files of the backend itself are in an instance's directory, not below it, and appear with the first volume.
        """
        found = map(Path, self.run("find", STORAGE, "-type", "f", "-printf", r"%P\n").splitlines())
        files = {f"file {file}" for file in found if file.parts[2:] and not file.name.startswith(".")}
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
        tasks = self.run(str(PROGRAMS / "ctr"), "-n", "k8s.io", "task", "ls").splitlines()[1:]
        pids = [
            pid for name, pid, state in (line.split() for line in tasks) if name == container and state == "RUNNING"
        ]
        if pids:
            self.run("sh", "-c", 'kill -9 "$1" || :', "sh", *pids)
        return bool(pids)

    def run(self, *command: str) -> str:
        return subprocess.run(self.words(*command), capture_output=True, text=True, check=True).stdout

    def words(self, *command: str) -> list[str]:
        """Return the command that runs another one on the node."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-u", "-i", "-p", "--", *command]
