"""An NVMe volume that can grow while it is in use: QEMU's disks cannot.

The guest's own kernel serves it over NVMe/TCP on loopback, and is its client. Its controllers may be many, so that the
kernel shows it as one with several paths: /dev/nvme0n1 is above nvme0c0n1.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csi_multi.host.command import LocalHost

MODULES = ("nvmet", "nvmet-tcp", "nvme-tcp")
TREE = Path("/sys/kernel/config/nvmet")
FABRICS = Path("/dev/nvme-fabrics")
ADDRESS, PORT = "127.0.0.1", "4420"


class Growing:
    """One volume: a file here, a namespace of a subsystem whose serial number is the volume's id."""

    def __init__(self, volume: str, file: Path) -> None:
        self.name = f"nqn.2026-01.test:{volume}"
        self._serial = volume.replace("-", "")
        self._file = file

    def serve(self, size: int) -> None:
        self.resize(size)
        system = TREE / "subsystems" / self.name
        system.mkdir()
        (system / "attr_allow_any_host").write_text("1")
        (system / "attr_serial").write_text(self._serial)
        space = system / "namespaces" / "1"
        space.mkdir()
        (space / "device_path").write_text(str(self._file))
        (space / "enable").write_text("1")
        (TREE / "ports" / "1" / "subsystems" / self.name).symlink_to(system)

    def connect(self) -> None:
        words = {"nqn": self.name, "transport": "tcp", "traddr": ADDRESS, "trsvcid": PORT, "hostid": str(uuid.uuid4())}
        descriptor = os.open(FABRICS, os.O_RDWR)
        try:
            os.write(descriptor, ",".join(f"{name}={text}" for name, text in words.items()).encode())
        finally:
            os.close(descriptor)

    def resize(self, size: int) -> None:
        """Change the file; whoever identifies the namespace is told of it."""
        with self._file.open("ab") as file:
            file.truncate(size)

    def remove(self) -> None:
        for controller in Path("/sys/class/nvme").glob("nvme*/subsysnqn"):
            if controller.read_text().strip() == self.name:
                (controller.parent / "delete_controller").write_text("1")
        (TREE / "ports" / "1" / "subsystems" / self.name).unlink(missing_ok=True)
        system = TREE / "subsystems" / self.name
        (system / "namespaces" / "1" / "enable").write_text("0")
        (system / "namespaces" / "1").rmdir()
        system.rmdir()


@contextmanager
def port() -> Iterator[None]:
    """Listen for clients of all volumes."""
    host = LocalHost()
    for module in MODULES:
        host.run("modprobe", *os.environ.get("MODPROBE_OPTIONS", "").split(), module)
    host.run("mount", "-t", "configfs", "configfs", str(TREE.parent))
    try:
        place = TREE / "ports" / "1"
        place.mkdir()
        for name, text in {"adrfam": "ipv4", "trtype": "tcp", "traddr": ADDRESS, "trsvcid": PORT}.items():
            (place / f"addr_{name}").write_text(text)
        yield
        place.rmdir()
    finally:
        host.run("umount", str(TREE.parent))


@contextmanager
def growing(volume: str, directory: Path, size: int) -> Iterator[Growing]:
    """Attach a volume that can grow."""
    one = Growing(volume, directory / volume)
    with port():
        one.serve(size)
        try:
            one.connect()
            yield one
        finally:
            one.remove()
