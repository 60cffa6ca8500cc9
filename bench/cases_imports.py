"""The time of the imports of `csi-multi serve` before it listens, by package."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from csi_multi.host.command import LocalHost

from .table import Row, alone, compared

OURS = "import csi_multi.commands.cli, csi_multi.process.serve, csi_multi_loop.backend"
BARE = "import grpc, concurrent.futures, csi_multi._proto.csi_pb2"
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
SHOWN = 10


def imports(directory: Path, *, quick: bool) -> list[Row]:
    """Add up the self times of `python -X importtime` by package; common imports are in both totals."""
    del directory
    ours, bare = [], []
    for _ in range(3 if quick else 9):
        ours.append(_packages(OURS))
        bare.append(_packages(BARE))
    rows = [compared("all imports", "ms", [one.total() for one in ours], [one.total() for one in bare])]
    names = sorted({name for one in ours for name in one}, key=lambda name: -sum(one[name] for one in ours))
    return rows + [alone(f"import {name}", "ms", [one[name] for one in ours]) for name in names[:SHOWN]]


def _packages(code: str) -> Counter[str]:
    """Return milliseconds by top-level package, the standard library as one."""
    found: Counter[str] = Counter()
    for micros, module in LINE.findall(LocalHost().run(sys.executable, "-X", "importtime", "-c", code).stderr):
        found[owner(module)] += int(micros) / 1000  # type: ignore[assignment]
    return found


def owner(module: str) -> str:
    top = ".".join(module.split(".")[:2]) if module.startswith("google.") else module.partition(".")[0]
    return "(standard library)" if top in sys.stdlib_module_names else top
