"""RPCs, commands and API calls as Prometheus metrics: how many, how they ended, how long they took.

Labels are few and known: methods of CSI, configured instances, status codes, names from backends' code. The one
of an instance is `backend`, because Prometheus calls what it scrapes `instance`.
"""

from __future__ import annotations

import threading
import time
from typing import Any, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics import MetricWrapperBase

from ..contract.observer import Ends, Rpc

M = TypeVar("M", bound=MetricWrapperBase)

# Seconds. A call of an RPC or a command takes milliseconds; a copy takes minutes, and a hang as long as its limit.
BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
OPERATIONS = 200  # per instance; what a backend names beyond them is counted as "other"


class Metrics:
    """A listener that counts."""

    def __init__(self, registry: prometheus.CollectorRegistry) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # a third more series that nobody asks for
        self.rpcs = prometheus.Counter(
            "csi_multi_rpcs", "RPCs that ended.", ("method", "code", "backend"), registry=registry
        )
        self.rpc_seconds = prometheus.Histogram(
            "csi_multi_rpc_seconds", "How long RPCs took.", ("method", "backend"), registry=registry, buckets=BUCKETS
        )
        self.running = prometheus.Gauge(
            "csi_multi_rpcs_running", "RPCs that run now.", ("method", "backend"), registry=registry
        )
        self.calls = prometheus.Counter(
            "csi_multi_storage_calls",
            "Host commands and calls to storage APIs that ended. The outcome is ok, or the class of the failure.",
            ("backend", "program", "operation", "outcome"),
            registry=registry,
        )
        self.call_seconds = prometheus.Histogram(
            "csi_multi_storage_call_seconds",
            "How long host commands and calls to storage APIs took.",
            ("backend", "program", "operation"),
            registry=registry,
            buckets=BUCKETS,
        )
        self._kept: dict[tuple[object, ...], Any] = {}
        self._known: dict[str, set[tuple[str, str]]] = {}
        self._lock = threading.Lock()

    def rpc(self, rpc: Rpc) -> Ends:
        method, backend = rpc.method, rpc.instance
        running, started = self._series(self.running, method, backend), time.perf_counter()
        running.inc()

        def end(code: str) -> None:
            running.dec()
            self._series(self.rpc_seconds, method, backend).observe(time.perf_counter() - started)
            self._series(self.rpcs, method, code, backend).inc()

        return end

    def call(self, instance: str, program: str, operation: str) -> Ends:
        labels = (instance, *self._bounded(instance, program, operation))
        started = time.perf_counter()

        def end(outcome: str) -> None:
            self._series(self.call_seconds, *labels).observe(time.perf_counter() - started)
            self._series(self.calls, *labels, outcome).inc()

        return end

    def _series(self, metric: M, *labels: str) -> M:
        """Return the metric with these labels; kept, because finding it takes the library longer than counting."""
        key = (metric, *labels)
        if (series := self._kept.get(key)) is None:
            series = self._kept[key] = metric.labels(*labels)
        found: M = series
        return found

    def _bounded(self, instance: str, program: str, operation: str) -> tuple[str, str]:
        """Keep a backend that names its calls after volumes from filling the memory, ours and Prometheus'."""
        name = (program, operation)
        known = self._known.get(instance, ())
        if name in known:
            return name
        with self._lock:
            names = self._known.setdefault(instance, set())
            if len(names) < OPERATIONS:
                names.add(name)
                return name
        return "other", ""
