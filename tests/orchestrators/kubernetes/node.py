"""One node: a set of namespaces (network, mounts, processes, names) in which its programs run.

What it needs beside those is a cgroup for its pods. Everything in it ends with its first process, and that ends with
the process that started it, however that ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

# The first process: it makes the node's own directories, says so, and lets the kernel reap what ends. What a node has
# at fixed paths lies in memory, and ends with it, or in its directory; the machine's directories are not used.
FIRST = r"""
set -e
home=$1 name=$2 share=$3
hostname "$name"
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lock
mkdir -p /run/usr-lib/upper /run/usr-lib/work
mount -t overlay -o lowerdir=/usr/lib,upperdir=/run/usr-lib/upper,workdir=/run/usr-lib/work lib /usr/lib
mount -t tmpfs -o mode=755 lib /var/lib
for one in kubelet csi-multi; do
    mkdir -p "/var/lib/$one" "$home/$one"
    mount --bind "$home/$one" "/var/lib/$one"
done
# A filesystem that shares blocks, for snapshots of groups.
if [ ! -e "$home/disk" ]; then
    truncate --size 4G "$home/disk"
    mkfs.xfs -q -m reflink=1 "$home/disk"
fi
mkdir -p /var/lib/csi-multi/together /var/lib/csi-multi/shared "$home/log"
mount -o loop "$home/disk" /var/lib/csi-multi/together
mount --bind "$share" /var/lib/csi-multi/shared
mount --bind "$home/log" /var/log
for notes in csi-multi csi-multi-loop csi-multi-frozen; do
    mount -t tmpfs -o mode=755 notes "/dev/$notes"
done
mount --make-rshared /
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo ready
trap '' CHLD
exec sleep infinity
"""
PID = "pid"  # a file in the home: another process may start the node again
SPACES = ("--mount", "--net", "--uts", "--ipc", "--pid")


class NodeError(Exception):
    """A node or a program on it does not start; the text says why."""


class Node:
    """`home` is the directory of everything that the node writes, `cgroup` the name of its pods' cgroup.

    `share`: a directory that all nodes have, as storage behind a network.
    """

    def __init__(self, name: str, number: int, home: Path, *, cgroup: str, share: Path) -> None:
        self.name, self.number, self.home, self.cgroup, self._share = name, number, home, cgroup, share
        self.address = f"10.10.0.{number}"
        self.pods = f"10.244.{number}"
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._outer: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The first process, as this machine knows it."""
        return int((self.home / PID).read_text())

    def start(self) -> None:
        """Start the first process; the node ends with this one. Raises NodeError."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._reap()  # an earlier start
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", *SPACES, "--fork", "--kill-child", "--mount-proc"]
        words += ["--propagation", "private", "sh", "-c", FIRST, "sh", str(self.home), self.name, str(self._share)]
        log = self.home / "node.log"
        with log.open("w") as errors:
            pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
            self._outer = subprocess.Popen(words, **pipes, text=True, start_new_session=True)
        assert self._outer.stdout
        with self._outer.stdout as said:
            ready = said.readline() == "ready\n"
        if not ready:
            raise NodeError(f"the namespaces of {self.name} cannot be made: {log.read_text().strip()}")
        (self.home / PID).write_text(str(_child(self._outer.pid)))

    def stop(self) -> None:
        """Kill everything on the node; return when it is gone."""
        if self._outer is None:
            return
        if self._outer.poll() is None and (self.home / PID).exists():
            with suppress(ProcessLookupError):  # it was switched off just now
                os.kill(self.pid, signal.SIGKILL)  # the kernel ends all others of the namespace before it
        else:
            self._outer.kill()
        self._reap()

    def _reap(self) -> None:
        """Wait for what was started, and has ended or is about to."""
        if self._outer:
            self._outer.wait()
        for program in self.programs.values():
            program.wait()
        self.programs.clear()

    def words(self, *command: str, directory: Path | None = None) -> list[str]:
        """Return the command that runs another one on the node."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-n", "-u", "-i", "-p"]
        return [*enter, "--", "env", "-C", str(directory or self.home), *command]

    def run(self, *command: str) -> str:
        """Run a command on the node to its end; return what it prints. Raises NodeError."""
        done = subprocess.run(self.words(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise NodeError(f"{' '.join(command)} on {self.name} failed: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def launch(self, *command: str, environment: dict[str, str] | None = None) -> None:
        """Start a program on the node, known by the name of its file. Its log is NAME.log in the home."""
        name = Path(command[0]).name
        with (self.home / f"{name}.log").open("ab") as log:
            self.programs[name] = subprocess.Popen(
                self.words(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9 a program of the node, and wait until it is gone."""
        program = self.programs.pop(name)
        os.kill(_child(program.pid), signal.SIGKILL)
        program.wait()

    def ended(self) -> str:
        """Return which program has ended by itself, with the end of its log; empty if none has."""
        for name, program in self.programs.items():
            if program.poll() is not None:
                log = (self.home / f"{name}.log").read_text(errors="replace")[-1500:]
                return f"{name} on {self.name} ended with status {program.returncode}: {log}"
        return ""


def _child(pid: int) -> int:
    """Return the one child of a process. Not every kernel has /proc/PID/task/PID/children."""
    return int(
        subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=True).stdout
    )
