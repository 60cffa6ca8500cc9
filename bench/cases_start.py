"""The time from start to the first successful Probe, and the memory of the driver after it."""

from __future__ import annotations

import time
from pathlib import Path

from .processes import bare, client, driver
from .table import Row, Target, compared

START = Target(limit=1.0, absolute=True)
MEMORY = Target(limit=1.6)
PROBES = 1000


def startup(directory: Path, *, quick: bool) -> list[Row]:
    """Start both servers in turn; send each one Probe, then a thousand more."""
    seconds: tuple[list[float], ...] = ([], [])
    memory: dict[str, tuple[list[float], ...]] = {"Rss": ([], []), "Pss": ([], [])}
    for _ in range(3 if quick else 11):
        for side, serving in enumerate((driver, bare)):
            began = time.perf_counter()
            with serving(directory) as server, client(server) as caller:
                caller.Probe()
                seconds[side].append(time.perf_counter() - began)
                for _ in range(PROBES):
                    caller.Probe()
                found = server.memory()
            for kind, figures in memory.items():
                figures[side].append(found[kind])
    return [
        compared("start to first Probe", "s", *seconds, target=START),
        compared(f"RSS after {PROBES} Probes", "MiB", *memory["Rss"], target=MEMORY),
        compared(
            f"PSS after {PROBES} Probes",
            "MiB",
            *memory["Pss"],
            note="smaps_rollup; pages shared with this process count in part",
        ),
    ]
