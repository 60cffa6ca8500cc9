"""From nothing to the first successful Probe, and the memory the driver then takes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from .processes import Server, bare_words, client, driver_words
from .table import Row, Target, compared

START = Target(limit=1.0, absolute=True)
MEMORY = Target(limit=1.6)
PROBES = 1000


def startup(directory: Path, *, quick: bool) -> list[Row]:
    """Start both servers in turn; each gets its first Probe, then a thousand more."""
    seconds: tuple[list[float], ...] = ([], [])
    memory: dict[str, tuple[list[float], ...]] = {"Rss": ([], []), "Pss": ([], [])}
    for round_ in range(3 if quick else 11):
        for side, words in enumerate((driver_words(directory, "driver"), bare_words())):
            name = f"{side}-{round_}"
            with ExitStack() as stack:
                began = time.perf_counter()
                server = Server(directory / f"{name}.sock", directory / f"{name}.log", words)
                stack.callback(server.stop)
                server.wait()
                caller = stack.enter_context(client(server))
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
