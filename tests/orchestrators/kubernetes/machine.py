"""What a cluster changes on the machine itself: cgroups, loop devices, kernel settings. All of it is taken back.

What a run that was killed has left is taken back by the next one: a file says what it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from csi_multi_loop import directory_notes

from csi_multi.node import device_records, freeze_notes

CGROUPS = Path("/sys/fs/cgroup")
SYS = Path("/proc/sys")
INSTANCES = "fs/inotify/max_user_instances"
# A kubelet sets the first ones; the last is too small for several nodes.
SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", INSTANCES)
# Places to put each node's own over.
NOTES = (device_records.NOTES, freeze_notes.NOTES, directory_notes.NOTES)
LOOP = "7:"  # devices of the kernel's loop driver
LIMIT = 30.0  # seconds until killed processes have left their cgroups


class Machine:
    """`record`: the file with what is to be taken back; `homes`: the directory of all nodes."""

    def __init__(self, record: Path, homes: Path) -> None:
        self._record, self._homes = record, homes

    def prepare(self, cgroups: list[str]) -> None:
        """Take back what an earlier run left, then make what the nodes need."""
        self.restore()
        settings = {name: (SYS / name).read_text().strip() for name in SETTINGS}
        notes = [str(place) for place in NOTES if not place.exists()]
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._record.write_text(json.dumps({"settings": settings, "cgroups": cgroups, "notes": notes}))
        for place in notes:
            Path(place).mkdir()
        (SYS / INSTANCES).write_text(str(max(8192, int(settings[INSTANCES]))))
        for name in cgroups:
            for parent in _hierarchies():
                _make_cgroup(parent / name)

    def restore(self) -> None:
        """Take everything back. The nodes have ended. What cannot be taken back stays in `leftovers`."""
        if not self._record.exists():
            return
        kept = json.loads(self._record.read_text())
        for device in self.loop_devices():
            subprocess.run(["losetup", "--detach", device], capture_output=True, check=False)
        for name, value in kept["settings"].items():
            with suppress(OSError):
                (SYS / name).write_text(value)
        deadline = time.monotonic() + LIMIT
        while not self._gone() and time.monotonic() < deadline:
            time.sleep(0.1)
        for place in kept["notes"]:
            with suppress(OSError):
                Path(place).rmdir()
        if not self.leftovers():
            self._record.unlink()

    def leftovers(self) -> list[str]:
        """Return what is still there of the nodes: loop devices, mounts and cgroups of this machine."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return [
            *(f"loop device {device}" for device in self.loop_devices()),
            *(f"mount {line.split()[4]}" for line in mounts if str(self._homes) in line),
            *(f"cgroup {path}" for path in self._cgroups()),
        ]

    def loop_devices(self) -> list[str]:
        """Return the loop devices of files of the nodes, and those of files on these devices, first."""
        return devices_of(file for home in self._homes.glob("*") for file in files_of(home))

    def _gone(self) -> bool:
        """Remove cgroups; return whether they and the loop devices are gone, which the kernel removes by itself."""
        return all(_remove_cgroup(path) for path in self._cgroups()) and not self.loop_devices()

    def _cgroups(self) -> list[Path]:
        names = json.loads(self._record.read_text())["cgroups"] if self._record.exists() else []
        return [parent / name for parent in _hierarchies() for name in names if (parent / name).exists()]


def files_of(home: Path) -> Iterator[Path]:
    """Yield the files in the directory of a node, or in that of the share, that may have loop devices."""
    yield from home.glob("csi-multi/**/*")
    yield from home.glob("disk")


def devices_of(files: Iterable[Path]) -> list[str]:
    """Return the loop devices of files, and those of files on these devices, first.

    Files are known by their inodes: their names are those on the nodes.
    """
    ours = {file.stat().st_ino for file in files}
    words = ["losetup", "-nO", "NAME,MAJ:MIN,BACK-INO,BACK-MAJ:MIN"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    devices = [line.split() for line in listed.splitlines()]
    own = {device: name for name, device, inode, below in devices if int(inode) in ours and not below.startswith(LOOP)}
    # A device of a device has as its file what it was made of: the other one, or a node of it in /dev.
    nodes = {_identity(Path(name)) for name in own.values()}
    above = [name for name, _, inode, below in devices if below in own or (inode, below) in nodes]
    return [*above, *own.values()]


def _identity(path: Path) -> tuple[str, str]:
    status = path.stat()
    return str(status.st_ino), f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def empty_cgroup(name: str) -> None:
    """Remove what is in the cgroup of a node whose processes have ended."""
    for parent in _hierarchies():
        for one in (parent / name).iterdir():
            if one.is_dir():
                _remove_cgroup(one)


def _hierarchies() -> list[Path]:
    """Return the top of each hierarchy of cgroups: one of version 2, many of version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [path for path in sorted(CGROUPS.iterdir()) if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _make_cgroup(path: Path) -> None:
    path.mkdir(exist_ok=True)
    for name in ("cpuset.cpus", "cpuset.mems"):  # of version 1: empty, and then nothing can run in it
        if (path / name).exists() and (path.parent / name).exists() and not (path / name).read_text().strip():
            (path / name).write_text((path.parent / name).read_text())


def _remove_cgroup(path: Path) -> bool:
    """Remove a cgroup and those in it; return whether they are gone. One with processes cannot be removed."""
    for one in sorted((path, *(below for below in path.rglob("*") if below.is_dir())), reverse=True):
        with suppress(OSError):
            one.rmdir()
    return not path.exists()
