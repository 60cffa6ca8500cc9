"""RPCs, commands and API calls as Prometheus metrics: their number, result and duration.

The label values are few and known: CSI methods, configured instances, status codes, names from the code of backends.
The label of an instance is `backend`, because Prometheus uses `instance` for the target that it scrapes.
"""

from __future__ import annotations

import threading
import time
from typing import Any, TypeVar

import prometheus_client as prometheus
from prometheus_client.metrics import MetricWrapperBase

from ..contract.observer import EndCallback, Rpc

M = TypeVar("M", bound=MetricWrapperBase)

# Seconds. An RPC or a command takes milliseconds, a copy takes minutes, and a hanging call takes its time limit.
BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
MAX_OPERATIONS = 200  # per instance; further ones are counted as "other"


class MetricsListener:
    """A listener that counts RPCs and calls."""

    def __init__(self, registry: prometheus.CollectorRegistry) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would add a third more series
        self.rpcs = prometheus.Counter(
            "csi_multi_rpcs", "RPCs that have ended.", ("method", "code", "backend"), registry=registry
        )
        self.rpc_seconds = prometheus.Histogram(
            "csi_multi_rpc_seconds",
            "Duration of RPCs.",
            ("method", "backend"),
            registry=registry,
            buckets=BUCKETS,
        )
        self.running = prometheus.Gauge(
            "csi_multi_rpcs_running", "RPCs that are running.", ("method", "backend"), registry=registry
        )
        self.calls = prometheus.Counter(
            "csi_multi_storage_calls",
            "Host commands and calls to storage APIs that have ended. The outcome is ok, or the class of the error.",
            ("backend", "program", "operation", "outcome"),
            registry=registry,
        )
        self.call_seconds = prometheus.Histogram(
            "csi_multi_storage_call_seconds",
            "Duration of host commands and calls to storage APIs.",
            ("backend", "program", "operation"),
            registry=registry,
            buckets=BUCKETS,
        )
        self._cache: dict[tuple[object, ...], Any] = {}
        self._operations: dict[str, set[tuple[str, str]]] = {}
        self._lock = threading.Lock()

    def begin_rpc(self, rpc: Rpc) -> EndCallback:
        method, backend = rpc.method, rpc.instance
        running, started = self._series(self.running, method, backend), time.perf_counter()
        running.inc()

        def end(code: str) -> None:
            running.dec()
            self._series(self.rpc_seconds, method, backend).observe(time.perf_counter() - started)
            self._series(self.rpcs, method, code, backend).inc()

        return end

    def begin_call(self, instance: str, program: str, operation: str) -> EndCallback:
        labels = (instance, *self._bounded(instance, program, operation))
        started = time.perf_counter()

        def end(outcome: str) -> None:
            self._series(self.call_seconds, *labels).observe(time.perf_counter() - started)
            self._series(self.calls, *labels, outcome).inc()

        return end

    def _series(self, metric: M, *labels: str) -> M:
        """Return the metric with these labels; cached, because the library's lookup takes longer than counting."""
        key = (metric, *labels)
        if (series := self._cache.get(key)) is None:
            series = self._cache[key] = metric.labels(*labels)
        found: M = series
        return found

    def _bounded(self, instance: str, program: str, operation: str) -> tuple[str, str]:
        """Limit the number of operations: a backend may use names of volumes, which would fill the memory."""
        name = (program, operation)
        known = self._operations.get(instance, ())
        if name in known:
            return name
        with self._lock:
            names = self._operations.setdefault(instance, set())
            if len(names) < MAX_OPERATIONS:
                names.add(name)
                return name
        return "other", ""
