"""The cheapest RPCs through the whole driver, compared with a grpcio server with empty handlers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from .load import WARM_UP, clients, median_latency, throughput
from .processes import Server, bare, client, driver
from .table import Row, Target, compared

RPCS = ("Probe", "NodeGetCapabilities")
LATENCY = Target(limit=1.3)
CALLS = 300  # in a row, for one p50
SECONDS = 0.7  # of calls, for one rate
Sides = tuple[list[float], list[float]]  # ours, bare
THROUGHPUT = Target(limit=0.8, at_least=True)


def rpc(directory: Path, *, quick: bool) -> list[Row]:
    """Probe and NodeGetCapabilities: latency of single calls, then throughput of 16 client threads."""
    with ExitStack() as stack:
        servers = (stack.enter_context(driver(directory)), stack.enter_context(bare(directory)))
        rows = _latency(servers, rounds=5 if quick else 40)
        return rows + _throughput(servers, rounds=2 if quick else 16)


def _latency(servers: tuple[Server, ...], *, rounds: int) -> list[Row]:
    figures: dict[str, Sides] = {name: ([], []) for name in RPCS}
    with client(servers[0]) as ours, client(servers[1]) as bare:
        callers = (ours, bare)
        for round_ in range(-1, rounds):
            for name, side in _turns(round_):
                median = median_latency(getattr(callers[side], name), CALLS)
                if round_ >= 0:  # the first call is not measured
                    figures[name][side].append(median)
    return [compared(f"{name} p50", "us", *figures[name], target=LATENCY) for name in RPCS]


def _throughput(servers: tuple[Server, ...], *, rounds: int) -> list[Row]:
    rates: dict[str, Sides] = {name: ([], []) for name in RPCS}
    costs: dict[str, Sides] = {name: ([], []) for name in RPCS}
    with clients() as pool:
        for round_ in range(rounds):
            for name, side in _turns(round_):
                used = servers[side].cpu()
                rate = throughput(pool, servers[side].endpoint, name, SECONDS)
                rates[name][side].append(rate)
                costs[name][side].append((servers[side].cpu() - used) / (rate * (SECONDS + WARM_UP)) * 1e6)
    rows = [compared(f"{name}, 16 threads", "calls/s", *rates[name], target=THROUGHPUT) for name in RPCS]
    note = "under that load, without the client's part"
    return rows + [compared(f"{name}, server CPU", "us", *costs[name], note=note) for name in RPCS]


def _turns(round_: int) -> list[tuple[str, int]]:
    """Return the order of the two sides in a round; it alternates, so that drift affects both sides alike."""
    turns = [(name, side) for name in RPCS for side in (0, 1)]
    return turns if round_ % 2 == 0 else turns[::-1]
