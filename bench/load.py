"""Load: calls one after the other for latency, from many processes for throughput."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.pool import Pool
from typing import Any

from csi_multi.rpc.client import Client

PROCESSES, THREADS = 4, 4  # 16 client threads, spread so that one interpreter is not the bottleneck
WARM_UP = 0.3  # seconds before the calls count


def median_latency(call: Any, calls: int) -> float:
    """Return the p50 of so many calls, in microseconds."""
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e6


@contextmanager
def clients() -> Iterator[Pool]:
    """Client processes for the block. They are spawned: forking breaks grpc."""
    with get_context("spawn").Pool(PROCESSES, initializer=_deaf) as pool:
        yield pool


def throughput(pool: Pool, endpoint: str, rpc: str, seconds: float) -> float:
    """Return calls per second over all client threads."""
    return sum(pool.starmap(_process, [(endpoint, rpc, seconds)] * PROCESSES, chunksize=1))


def _deaf() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends the pool


def _process(endpoint: str, rpc: str, seconds: float) -> float:
    client = Client(endpoint)
    client.wait()
    rates: list[float] = []
    threads = [threading.Thread(target=_thread, args=(getattr(client, rpc), seconds, rates)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    if len(rates) != THREADS:
        raise RuntimeError(f"{THREADS - len(rates)} client threads failed while calling {rpc}")
    return sum(rates)


def _thread(call: Any, seconds: float, rates: list[float]) -> None:
    ends = time.monotonic() + WARM_UP
    while time.monotonic() < ends:
        call()
    count, began = 0, time.monotonic()
    while time.monotonic() < began + seconds:
        call()
        count += 1
    rates.append(count / (time.monotonic() - began))
