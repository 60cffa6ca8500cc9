"""Ten thousand volumes: a page at any position, requests compared with those beside ten, the memory of the driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from csi_multi.rpc.client import Client

from .cases_node import CAPABILITY
from .processes import MIB, SCRATCH, Server, Unmeasurable, client, driver
from .table import Row, Target, alone, compared

PAGE = 100
FEW = 10
AT_ONCE = 20
REPEATED = 50  # requests in a round: the kernel counts processor time in units of 10 ms
SAME = Target(limit=1.5)
FLAT = Target(limit=1.25)
GROWTH = Target(limit=30, absolute=True)


def listing(directory: Path, *, quick: bool) -> list[Row]:
    """List the volumes page by page; measure the memory, and what requests cost beside few and many volumes."""
    count = 1000 if quick else 10_000
    rounds = 2 if quick else 7
    with driver(directory) as server, client(server) as caller:
        for number in range(FEW):
            _create(caller, number)
        few = _costs(server, caller, rounds)
        rate = _fill(caller, count)
    with driver(directory) as server, client(server) as caller:
        before = server.memory()["Rss"]
        tokens = _walk(caller, count)
        pages = _pages(caller, tokens, rounds=5 if quick else 40)
        beside = [_create(caller, number) * 1000 for number in range(-20, 0)]
        growth = server.memory()["Rss"] - before
        many = _costs(server, caller, rounds)
    return [
        *pages,
        *(
            compared(f"{name}, beside {count} to {FEW}", "CPU ms", many[name], few[name], target=SAME)
            for name in REQUESTS
        ),
        Row(name="RSS growth, all that", unit="MiB", ours=growth, target=GROWTH, note=f"{count} volumes"),
        Row(name="CreateVolume, rate", unit="/s", ours=rate, note=f"{AT_ONCE} at once, up to {count} volumes"),
        alone(f"CreateVolume beside {count}", "ms", beside),
    ]


def _fill(caller: Client, count: int) -> float:
    """Create volumes until there are `count`. Return the rate per second."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began = time.monotonic()
        list(pool.map(lambda number: _create(caller, number), range(FEW, count)))
        return (count - FEW) / (time.monotonic() - began)


def _costs(server: Server, caller: Client, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of the driver's processor time of each request, once per round."""
    found: dict[str, list[float]] = {name: [] for name in REQUESTS}
    for name in list(REQUESTS) * (rounds + 1):  # the first round is not counted: then all volumes are looked at once
        before = server.cpu()
        for _ in range(REPEATED):
            REQUESTS[name](caller)
        found[name].append((server.cpu() - before) * 1000 / REPEATED)
    return {name: figures[1:] for name, figures in found.items()}


def _create_and_delete(caller: Client) -> None:
    caller.DeleteVolume(volume_id=caller.CreateVolume(**_volume("bench-again")).volume.volume_id)


def _create(caller: Client, number: int) -> float:
    """Create one volume; return the seconds it took."""
    began = time.perf_counter()
    caller.CreateVolume(**_volume(f"bench-{number:05}"))
    return time.perf_counter() - began


def _volume(name: str) -> dict[str, object]:
    return {
        "name": name,
        "capacity_range": {"required_bytes": MIB},
        "volume_capabilities": [CAPABILITY],
        "parameters": {"backend": SCRATCH},
    }


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


REQUESTS: dict[str, Callable[[Client], object]] = {
    "CreateVolume and DeleteVolume": _create_and_delete,
    "GetCapacity": lambda caller: caller.GetCapacity(parameters={"backend": SCRATCH}),
    "ListVolumes, a page of 10": lambda caller: caller.ListVolumes(max_entries=10),
}
