"""Ten thousand volumes: the time of a page at any position, and the memory of the driver."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from csi_multi.rpc.client import Client

from .cases_node import CAPABILITY
from .processes import MIB, SCRATCH, Unmeasurable, client, driver
from .table import Row, Target, alone, compared

PAGE = 100
PARTS = tuple(f"part-{number}" for number in range(20))
FLAT = Target(limit=1.25)
GROWTH = Target(limit=30, absolute=True)


def listing(directory: Path, *, quick: bool) -> list[Row]:
    """List the volumes page by page, and measure the driver's memory."""
    count = 1000 if quick else 10_000
    rate = _make(directory, count)
    with driver(directory) as server, client(server) as caller:
        before = server.memory()["Rss"]
        tokens = _walk(caller, count)
        pages = _pages(caller, tokens, rounds=5 if quick else 40)
        beside = [_create(caller, SCRATCH[0], number) * 1000 for number in range(-20, 0)]
        growth = server.memory()["Rss"] - before
    return [
        *pages,
        Row(name="RSS growth, all that", unit="MiB", ours=growth, target=GROWTH, note=f"{count} volumes"),
        Row(
            name="CreateVolume, rate",
            unit="/s",
            ours=rate,
            note=f"{count // len(PARTS)} in each of {len(PARTS)} stores",
        ),
        alone(f"CreateVolume beside {count}", "ms", beside),
    ]


def _make(directory: Path, count: int) -> float:
    """Create the volumes with the RPC in several stores, and move them into one. Return the rate per second.

    CreateVolume looks at all volumes of its store, so creating ten thousand in one store takes minutes.
    """
    numbers = range(count)
    with driver(directory, PARTS) as server, client(server) as caller, ThreadPoolExecutor(len(PARTS)) as pool:
        began = time.monotonic()
        list(pool.map(lambda number: _create(caller, PARTS[number % len(PARTS)], number), numbers))
        rate = count / (time.monotonic() - began)
    whole = directory / SCRATCH[0] / "volumes"
    whole.mkdir(parents=True)
    for part in PARTS:
        for volume in (directory / part / "volumes").iterdir():
            volume.rename(whole / volume.name)
    return rate


def _create(caller: Client, store: str, number: int) -> float:
    """Create one volume; return the seconds it took."""
    began = time.perf_counter()
    caller.CreateVolume(
        name=f"bench-{number:05}",
        capacity_range={"required_bytes": MIB},
        volume_capabilities=[CAPABILITY],
        parameters={"backend": store},
    )
    return time.perf_counter() - began


def _walk(caller: Client, count: int) -> list[str]:
    """List everything once and return the token of every page; fail unless each volume is listed once."""
    tokens, seen = [""], []
    while True:
        page = caller.ListVolumes(max_entries=PAGE, starting_token=tokens[-1])
        seen += [entry.volume.volume_id for entry in page.entries]
        if not page.next_token:
            break
        tokens.append(page.next_token)
    if len(seen) != count or len(set(seen)) != count:
        raise Unmeasurable(f"{count} volumes were created, but {len(seen)} listed, {len(set(seen))} of them different")
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
        alone(f"ListVolumes, first {PAGE}", "ms", took["first"]),
        compared("ListVolumes, middle to first", "ms", took["middle"], took["first"], target=FLAT),
        compared("ListVolumes, last to first", "ms", took["last"], took["first"], target=FLAT),
    ]
