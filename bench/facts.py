"""The facts that belong to every figure: the machine and the versions."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from csi_multi.contract import CommandFailed
from csi_multi.host.command import LocalHost


def facts(started: datetime.datetime) -> dict[str, Any]:
    """Return the facts at the head of the JSON file."""
    return {
        "date": started.isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "protobuf", "csi-multi", "csi-multi-loop")},
    }


def _commit() -> str:
    try:
        return (
            LocalHost().run("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty").stdout.strip()
        )
    except CommandFailed:
        return ""  # not a checkout


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()
