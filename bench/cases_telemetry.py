"""The cost of metrics and traces per RPC and per process: the driver with them and without."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from .load import median_latency
from .processes import Server, Unmeasurable, client, driver_words, running
from .table import Row, Target, compared

RPCS = ("Probe", "NodeGetCapabilities")
CALLS = 300  # in a row, for one p50
LATENCY = Target(limit=1.15)
MEMORY = Target(limit=1.15)
COLLECTOR = "opentelemetry.proto.collector.trace.v1.TraceService"
NEEDED = {"metrics": "prometheus_client", "traces": "opentelemetry.sdk"}


def telemetry(directory: Path, *, quick: bool) -> list[Row]:
    """Latency of the cheapest RPCs, where overhead is most visible, and memory; one in ten RPCs is traced."""
    for name in NEEDED.values():
        if not importlib.util.find_spec(name.partition(".")[0]):
            raise Unmeasurable(f"the package of {name} is not installed")
    with ExitStack() as stack:
        collector = stack.enter_context(_collector())
        plain = stack.enter_context(_driver(directory, "plain"))
        measured = stack.enter_context(_driver(directory, "metrics", metrics=True))
        traced = stack.enter_context(_driver(directory, "traces", collector=collector))
        rounds = 5 if quick else 40
        return [
            *_rows("metrics", measured, plain, rounds, LATENCY, MEMORY),
            *_rows("traces", traced, plain, rounds, None, None),
        ]


def _rows(
    what: str, ours: Server, plain: Server, rounds: int, latency: Target | None, memory: Target | None
) -> list[Row]:
    figures: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in RPCS}
    with client(ours) as one, client(plain) as other:
        callers = (one, other)
        for round_ in range(-1, rounds):
            for name in RPCS:
                for side in (0, 1) if round_ % 2 else (1, 0):
                    median = median_latency(getattr(callers[side], name), CALLS)
                    if round_ >= 0:  # the first call is not measured
                        figures[name][side].append(median)
    rows = [compared(f"{name} p50 with {what}", "us", *figures[name], target=latency) for name in RPCS]
    sizes = ([ours.memory()["Rss"]], [plain.memory()["Rss"]])
    return [*rows, compared(f"RSS with {what}", "MiB", *sizes, target=memory)]


@contextmanager
def _driver(directory: Path, name: str, *, metrics: bool = False, collector: str = "") -> Iterator[Server]:
    words = driver_words(directory, name)
    if metrics:
        config = directory / f"{name}.yaml"
        config.write_text(config.read_text().replace("driver: {", "driver: {metrics: '127.0.0.1:0', ", 1))
    if collector:
        sampled = ("OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.1")
        words = ("env", f"OTEL_EXPORTER_OTLP_ENDPOINT={collector}", *sampled, *words)
    with running(directory, name, words) as server:
        yield server


@contextmanager
def _collector() -> Iterator[str]:
    """Run a collector that accepts everything and keeps nothing; yield its address."""
    server = grpc.server(ThreadPoolExecutor(1))
    taking = grpc.unary_unary_rpc_method_handler(lambda *_: b"")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(COLLECTOR, {"Export": taking}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
