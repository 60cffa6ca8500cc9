"""Kernel features that tests need, and whether this machine has them. Every answer is tested, not assumed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from csi_multi.host.privilege import LinuxCapability, held

TARGETS = {  # of device-mapper, with their modules
    "thin-pool": "dm-thin-pool",
    "snapshot": "dm-snapshot",
    "raid": "dm-raid",
    "integrity": "dm-integrity",
    "flakey": "dm-flakey",
    "crypt": "dm-crypt",
    "delay": "dm-delay",
}
PERSONALITIES = ("raid1", "raid10", "raid456")  # modules that dm-raid loads for a volume of that type
LOOK = 20.0  # seconds for a program that only reads


@dataclass(frozen=True)
class Feature:
    """A feature of a stock kernel that this machine may lack."""

    missing: Callable[[], str]  # why this process does not have it; "" if it does
    modules: tuple[str, ...]  # that a guest loads at boot to provide it


def _device_mapper() -> str:
    if os.geteuid() != 0 or not held(LinuxCapability.CAP_SYS_ADMIN):
        return "this process may not use device-mapper"
    try:
        os.close(os.open("/dev/mapper/control", os.O_RDWR))
    except OSError as error:
        return f"/dev/mapper/control: {error.strerror}"
    if not Path("/dev/loop-control").exists():
        return "no loop devices"
    if lacking := set(TARGETS) - _targets():
        for target in lacking:
            _seen("modprobe", "--quiet", TARGETS[target])
        lacking -= _targets()
    return f"device-mapper lacks {', '.join(sorted(lacking))}" if lacking else ""


def _targets() -> set[str]:
    """Return what the kernel's device-mapper can do at present."""
    return {line.split()[0] for line in _seen("dmsetup", "targets").splitlines() if line.strip()}


def _seen(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LOOK)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


FEATURES = {
    "device-mapper": Feature(_device_mapper, ("loop", "dm-mod", *TARGETS.values(), *PERSONALITIES)),
}
