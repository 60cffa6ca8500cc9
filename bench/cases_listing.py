"""Ten thousand volumes: what a page of them costs, wherever it is, and what they weigh in the driver."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from csi_multi.rpc.client import Client

from .cases_node import CAPABILITY
from .processes import MIB, Unmeasurable, client, driver
from .table import Row, Target, alone, compared

PAGE = 100
CREATORS = 4  # threads of the client that makes the volumes
FLAT = Target(limit=1.25)
GROWTH = Target(limit=30, absolute=True)


def listing(directory: Path, *, quick: bool) -> list[Row]:
    """Make the volumes through CreateVolume, list them page by page, watch the driver's memory."""
    count = 1000 if quick else 10_000
    with driver(directory) as server, client(server) as caller:
        list(caller.ListVolumes(max_entries=PAGE).entries)
        before = server.memory()["Rss"]
        rates = [_make(caller, start, count // 10) for start in range(0, count, count // 10)]
        made = server.memory()["Rss"]
        tokens = _walk(caller, count)
        rows = _pages(caller, tokens, rounds=5 if quick else 40)
        listed = server.memory()["Rss"]
    rows.append(Row(name="RSS growth, created and listed", unit="MiB", ours=listed - before, target=GROWTH))
    with driver(directory) as server, client(server) as caller:
        before = server.memory()["Rss"]
        _walk(caller, count)
        rows.append(
            Row(name="RSS growth, listed only", unit="MiB", ours=server.memory()["Rss"] - before, target=GROWTH)
        )
    note = f"{count} volumes; the first tenth at {rates[0]:.0f}/s, the last at {rates[-1]:.0f}/s"
    return [
        *rows,
        alone(
            f"CreateVolume, {CREATORS} at a time",
            "/s",
            rates,
            note=f"{note}; created and listed: {made:.0f} MiB RSS in all",
        ),
    ]


def _make(caller: Client, start: int, count: int) -> float:
    """Make volumes and return how many per second."""

    def make(number: int) -> None:
        caller.CreateVolume(
            name=f"bench-{number:05}",
            capacity_range={"required_bytes": MIB},
            volume_capabilities=[CAPABILITY],
            parameters={"backend": "scratch"},
        )

    began = time.monotonic()
    with ThreadPoolExecutor(CREATORS) as pool:
        list(pool.map(make, range(start, start + count)))
    return count / (time.monotonic() - began)


def _walk(caller: Client, count: int) -> list[str]:
    """List everything once and return the token of every page; fail unless each volume came once."""
    tokens, seen = [""], []
    while True:
        page = caller.ListVolumes(max_entries=PAGE, starting_token=tokens[-1])
        seen += [entry.volume.volume_id for entry in page.entries]
        if not page.next_token:
            break
        tokens.append(page.next_token)
    if len(seen) != count or len(set(seen)) != count:
        raise Unmeasurable(f"{count} volumes were made, but {len(seen)} listed, {len(set(seen))} of them different")
    return tokens


def _pages(caller: Client, tokens: list[str], *, rounds: int) -> list[Row]:
    places = {"first": tokens[0], "middle": tokens[len(tokens) // 2], "last": tokens[-1]}
    took: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(rounds):
        for name, token in places.items():
            began = time.perf_counter()
            caller.ListVolumes(max_entries=PAGE, starting_token=token)
            took[name].append((time.perf_counter() - began) * 1000)
    return [
        alone("ListVolumes, first page of 100", "ms", took["first"]),
        compared("ListVolumes, middle to first page", "ms", took["middle"], took["first"], target=FLAT),
        compared("ListVolumes, last to first page", "ms", took["last"], took["first"], target=FLAT),
    ]
