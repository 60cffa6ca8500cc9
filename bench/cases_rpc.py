"""The cheapest RPCs through the whole driver, beside a grpcio server with empty handlers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from csi_multi.rpc.client import Client

from .load import WARM_UP, clients, median_latency, throughput
from .processes import Server, bare, client, driver
from .table import Row, Target, compared

RPCS = ("Probe", "NodeGetCapabilities")
LATENCY = Target(limit=1.3)
THROUGHPUT = Target(limit=0.8, at_least=True)


def rpc(directory: Path, *, quick: bool) -> list[Row]:
    """Probe and NodeGetCapabilities: latency of single calls, then throughput of 16 client threads."""
    with ExitStack() as stack:
        servers = (stack.enter_context(driver(directory)), stack.enter_context(bare(directory)))
        callers = tuple(stack.enter_context(client(server)) for server in servers)
        rows = [_latency(name, callers, rounds=5 if quick else 25) for name in RPCS]
        for name in RPCS:
            rows += _throughput(name, servers, rounds=2 if quick else 6, seconds=1.0 if quick else 2.0)
        return rows


def _latency(name: str, callers: tuple[Client, ...], *, rounds: int) -> Row:
    figures: tuple[list[float], ...] = ([], [])
    for caller in callers:
        median_latency(getattr(caller, name), 300)  # warm
    for round_ in range(rounds):
        for side in _order(round_):
            figures[side].append(median_latency(getattr(callers[side], name), 400))
    return compared(f"{name} p50", "us", *figures, target=LATENCY)


def _throughput(name: str, servers: tuple[Server, ...], *, rounds: int, seconds: float) -> list[Row]:
    rates: tuple[list[float], ...] = ([], [])
    costs: tuple[list[float], ...] = ([], [])
    with clients() as pool:
        for round_ in range(rounds):
            for side in _order(round_):
                used = servers[side].cpu()
                rates[side].append(throughput(pool, servers[side].endpoint, name, seconds))
                calls = rates[side][-1] * (seconds + WARM_UP)
                costs[side].append((servers[side].cpu() - used) / calls * 1e6)
    return [
        compared(f"{name} throughput, 16 threads", "calls/s", *rates, target=THROUGHPUT),
        compared(f"{name} server CPU per call", "us", *costs, note="no client in this figure"),
    ]


def _order(round_: int) -> tuple[int, int]:
    """Which side goes first changes, so that drift of the machine hits both alike."""
    return (0, 1) if round_ % 2 == 0 else (1, 0)
