"""A simulated kernel: a tree like /sys, and files in /dev that hold the numbers of disks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from csi_multi_ebs.device_identity import NvmeKernel

MIB = 1 << 20


class FakeKernel(NvmeKernel):
    """Tests plug and unplug disks; flags of the real kernel are files too."""

    def __init__(self, root: Path) -> None:
        super().__init__(sys=root / "sys", dev=root / "dev")
        (self.sys / "block").mkdir(parents=True)
        self.dev.mkdir()
        self.users: set[Path] = set()
        self.raw: set[Path] = set()
        self.behind: dict[str, int] = {}
        self.deaf: set[str] = set()
        self.contents: dict[str, tuple[int, int]] = {}  # by disk: where data begins, and the bytes that one call reads
        self._count = 0

    def nvme(self, disk: str, serial: str, *, size: int = MIB, node: bool = True) -> None:
        """Plug an NVMe disk; `serial` is padded as the kernel does it."""
        self.plug(disk, {"device/serial": f"{serial:20}", "nsid": "1", "device/rescan_controller": ""}, size, node)
        self.behind[disk] = size

    def xen(self, disk: str, number: int, *, counted: bool = True) -> None:
        self.plug(disk, {"device/nodename": f"device/vbd/{number}"}, counted=counted)

    def plug(
        self, disk: str, attributes: Mapping[str, str], size: int = MIB, node: bool = True, counted: bool = True
    ) -> None:
        self._count += 1
        number = f"259:{self._count}"
        sequence = {"diskseq": str(self._count)} if counted else {}
        facts = {**attributes, **sequence, "dev": number, "ro": "0", "size": str(size // 512)}
        for name, text in facts.items():
            file = self.sys / "block" / disk / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        if node:
            (self.dev / disk).write_text(number)

    def unplug(self, disk: str) -> None:
        entry = self.sys / "block" / disk
        for file in sorted(entry.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        entry.rmdir()
        (self.dev / disk).unlink(missing_ok=True)

    def number(self, path: Path) -> str:
        return path.read_text() if path.is_file() else ""

    def in_use(self, path: Path) -> bool:
        return path in self.users | self.raw

    def is_node_bound(self, path: Path) -> bool:
        return path in self.raw

    def set_read_only(self, path: Path, wanted: bool) -> None:
        (self.sys / "block" / path.name / "ro").write_text(f"{int(wanted)}\n")

    def bytes_behind(self, disk: str, path: Path) -> int | None:
        return self.behind.get(disk)

    def read_zeros(self, path: Path, start: int, size: int, seconds: float) -> tuple[int, bool]:
        data, most = self.contents.get(path.name, (size, size))
        end = min(start + most, size)
        return (data, True) if data < end else (end, False)

    def rescan(self, disk: str) -> None:
        super().rescan(disk)
        if disk not in self.deaf:
            (self.sys / "block" / disk / "size").write_text(f"{self.behind[disk] // 512}\n")
