"""Loop devices: find, attach, resize, detach. Found by what sysfs says, never by memory."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import Unavailable
from . import Host
from .sysfs import attribute, number_of

SYS = Path("/sys/block")


def find(file: Path) -> list[Path]:
    """Return the loop devices whose backing file is this one, by its full path."""
    wanted = str(file)
    found = []
    for name in sorted(os.listdir(SYS)):
        if name.startswith("loop"):
            try:
                backing = (SYS / name / "loop/backing_file").read_text().rstrip("\n")
            except OSError:
                continue  # not bound
            if backing == wanted:
                found.append(Path("/dev") / name)
    return found


def attach(host: Host, file: Path, *, read_only: bool = False, sector_size: int = 512) -> Path:
    """Bind a free loop device to the file with direct I/O, so that data is not cached twice."""
    options = ["--direct-io=on", f"--sector-size={sector_size}", *(["--read-only"] if read_only else [])]
    device = Path(host.run("losetup", "--find", "--show", *options, "--", str(file)).stdout.strip())
    if attribute(number_of(device), "loop/backing_file") != str(file):
        raise Unavailable(f"{device} was bound to {file} but does not show it")
    return device


def refresh(host: Host, device: Path) -> None:
    """Let a bound loop device take its file's new size."""
    host.run("losetup", "--set-capacity", str(device))


def detach(host: Host, device: Path) -> None:
    """Free a loop device. While somebody holds it open the kernel frees it at the last close."""
    host.run("losetup", "--detach", str(device))
