"""NVMe disks that are plugged into a running guest and unplugged over QMP, with a volume's id as serial number.

QMP is QEMU's control protocol (docs/interop/qmp-spec in its sources): a JSON object per line, events between answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GIB = 1 << 30
BLOCK = 512 * 1024  # bytes
PORTS = 12  # disks that can be there at once: QEMU cannot add ports later
BOOT = 60.0  # seconds until QEMU listens
GONE = 60.0  # seconds until a guest has let go of a disk, on a busy machine
AGAIN = 5.0  # seconds after which it is asked again


class QmpError(Exception):
    """QEMU refused a command."""


def qemu_words(control: Path) -> tuple[str, ...]:
    """Return the words for qemu that give a guest free ports, and us the control of it."""
    words = ["-qmp", f"unix:{control},server=on,wait=off"]
    for number in range(1, PORTS + 1):
        words += ["-device", f"pcie-root-port,id=port{number},chassis={number},slot={number}"]
    return tuple(words)


class Qmp:
    """A connection to QEMU. Whoever uses it holds a lock of his own."""

    def __init__(self, control: Path) -> None:
        self._socket = _connected(control)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._events: list[Mapping[str, Any]] = []
        self._next()  # the greeting
        self.run("qmp_capabilities")

    def run(self, command: str, **arguments: Any) -> Any:
        """Return what the command returns. Raises QmpError."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._socket.sendall(json.dumps({"execute": command, "arguments": named}).encode() + b"\n")
        while True:
            answer = self._next()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error']['desc']}")
            self._events.append(answer)

    def gone(self, device: str, seconds: float) -> bool:
        """Wait so long for the guest to let go of a device, and say whether it did."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.run("query-status")  # brings the events that came before it
            if any(self._is_gone(event, device) for event in self._events):
                self._events.clear()
                return True
            time.sleep(0.05)
        return False

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def _next(self) -> Mapping[str, Any]:
        line = self._lines.readline()
        if not line:
            raise QmpError("QEMU has ended")
        message: Mapping[str, Any] = json.loads(line)
        return message

    @staticmethod
    def _is_gone(event: Mapping[str, Any], device: str) -> bool:
        return event.get("event") == "DEVICE_DELETED" and event.get("data", {}).get("device") == device


class Bus:
    """The guest's disks, each a sparse file here. What is unplugged keeps its data."""

    def __init__(self, control: Path, directory: Path) -> None:
        self._control = control
        self._directory = directory
        self._lock = threading.Lock()
        self._qmp: Qmp | None = None
        self._ports: dict[str, int] = {}  # by name of the disk

    def plug(self, name: str, serial: str, gib: int = 1) -> bool:
        """Plug a disk; an empty one where there is none of this name yet. Returns when QEMU has it."""
        with self._lock:
            if name in self._ports:
                return False
            port = min(set(range(1, PORTS + 1)) - set(self._ports.values()))
            file = self.file(name)
            with file.open("ab") as disk:
                disk.truncate(max(gib * GIB, disk.seek(0, os.SEEK_END)))
            storage = {"driver": "file", "filename": str(file)}
            self._run("blockdev-add", driver="raw", node_name=name, discard="unmap", file=storage)
            self._run("device_add", driver="nvme", id=f"disk-{name}", bus=f"port{port}", drive=name, serial=serial)
            self._ports[name] = port
            return True

    def unplug(self, name: str) -> bool:
        """Unplug a disk, and return when the guest has let go of it. Raises TimeoutError."""
        with self._lock:
            if name not in self._ports:
                return False
            self._pull(f"disk-{name}")
            self._run("blockdev-del", node_name=name)
            del self._ports[name]
            return True

    def copy(self, source: str, name: str) -> bool:
        """Give a disk to come the content of another one, which may be plugged."""
        if not self.file(source).exists():
            return False
        words = ("cp", "--sparse=always", "--reflink=auto", str(self.file(source)), str(self.file(name)))
        subprocess.run(words, check=True)
        return True

    def blocks(self, name: str) -> dict[int, bytes]:
        """Return the digests of the blocks of a disk that are not all zeros, by their number, as EBS counts blocks."""
        found: dict[int, bytes] = {}
        with self.file(name).open("rb") as disk:
            end, at = disk.seek(0, os.SEEK_END), 0
            while at < end:
                try:
                    at = os.lseek(disk.fileno(), at, os.SEEK_DATA) // BLOCK * BLOCK
                except OSError:  # ENXIO: nothing but a hole
                    break
                data = os.pread(disk.fileno(), BLOCK, at)
                if data.strip(b"\0"):
                    found[at // BLOCK] = hashlib.sha256(data).digest()
                at += BLOCK
        return found

    def forget(self, name: str) -> bool:
        """Throw a disk's content away."""
        self.file(name).unlink(missing_ok=True)
        return True

    def plugged(self) -> list[str]:
        return sorted(self._ports)

    def file(self, name: str) -> Path:
        return self._directory / name

    def close(self) -> None:
        if self._qmp:
            self._qmp.close()

    def _pull(self, device: str) -> None:
        """Ask the guest for a device until it gives it back: while it is still looking at it, it does not listen."""
        ends = time.monotonic() + GONE
        while time.monotonic() < ends:
            try:
                self._run("device_del", id=device)
            except QmpError as error:
                if "in the process of unplug" not in str(error):
                    raise
            if self._connection().gone(device, AGAIN):
                return
        raise TimeoutError(f"the guest has not let go of {device} for {GONE:g} s")

    def _run(self, command: str, **arguments: Any) -> Any:
        return self._connection().run(command, **arguments)

    def _connection(self) -> Qmp:
        if self._qmp is None:
            self._qmp = Qmp(self._control)
        return self._qmp


def _connected(control: Path) -> socket.socket:
    ends = time.monotonic() + BOOT
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(control))
        except OSError:
            connection.close()
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)
        else:
            return connection
