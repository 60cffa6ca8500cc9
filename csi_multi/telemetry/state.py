"""The driver's state as Prometheus metrics. A scrape reads it from memory and never calls a storage system."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..logs.handlers import DescriptorHandler
from ..node import trim
from ..rpc.interceptor import SharedRpcState
from .survey import BackgroundSurvey

Row = tuple[tuple[str, ...], float]


class StateCollector(Collector):
    """Running RPCs, locks, threads, instances, volumes and the configuration."""

    def __init__(
        self,
        shared: SharedRpcState,
        registry: Registry,
        survey: BackgroundSurvey,
        reloader: ConfigReloader,
        refused_answers: Callable[[], int],
    ) -> None:
        self._refused_answers = refused_answers
        self._shared = shared
        self._registry = registry
        self._survey = survey
        self._reloader = reloader
        self._versions = {name: version(name) for name in ("csi-multi", "grpcio")}

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield Info(
            "csi_multi_build",
            "Versions.",
            value={
                "version": self._versions["csi-multi"],
                "grpc": self._versions["grpcio"],
                "python": platform.python_version(),
            },
        )
        yield from self._locks_and_threads()
        yield from self._backends()
        yield from self._volumes()
        yield Counter(
            "csi_multi_node_answers_refused",
            "Answers of nodes of the cluster that named what is not on the node.",
            value=self._refused_answers(),
        )
        yield _counter_by_instance(
            "csi_multi_trimmed_bytes", "Bytes of mounted volumes that were given back to the storage.", trim.given_back
        )
        yield Counter(
            "csi_multi_log_lines_dropped",
            "Log lines that were dropped because nobody read them.",
            value=DescriptorHandler.dropped_ever,
        )
        yield Gauge(
            "csi_multi_config_last_reload_successful",
            "0: the changed file was refused; the previous configuration is in use.",
            value=float(self._reloader.successful),
        )
        yield Gauge(
            "csi_multi_config_last_reload_success_timestamp_seconds",
            "When the configuration in use was read.",
            value=self._reloader.succeeded_at,
        )

    def _locks_and_threads(self) -> Iterator[Metric]:
        held = self._shared.locks.held()
        yield Gauge("csi_multi_locks_held", "Objects that are locked by an operation.", value=len(held))
        oldest = held[0][2] if held else 0.0
        yield Gauge("csi_multi_lock_oldest_seconds", "Age of the oldest lock; 0: there is none.", value=oldest)
        slots = self._shared.slots.items()
        yield _gauge(
            "csi_multi_threads_in_use",
            "Threads in use by RPCs, by the cost of the RPCs.",
            ("cost",),
            [((cost.value,), one.total - one.free) for cost, one in slots],
        )
        yield _gauge(
            "csi_multi_rpcs_waiting",
            "RPCs that wait for a thread, by the cost of the RPCs.",
            ("cost",),
            [((cost.value,), one.waiting) for cost, one in slots],
        )
        yield _gauge(
            "csi_multi_threads",
            "Threads that RPCs may use at most, by the cost of the RPCs.",
            ("cost",),
            [((cost.value,), one.total) for cost, one in slots],
        )

    def _backends(self) -> Iterator[Metric]:
        rows = [((one.name, one.kind), one) for one in self._registry if one.changed_at is not None]
        broken = [((name, ""), 0.0) for name in self._registry.broken]
        yield _gauge(
            "csi_multi_backend_up",
            "1: the last check of the instance succeeded; 0: it failed, or the instance is broken.",
            ("backend", "kind"),
            [*((labels, float(not one.down_reason)) for labels, one in rows), *broken],
        )
        yield _gauge(
            "csi_multi_backend_changed_timestamp_seconds",
            "When the instance went up or down.",
            ("backend", "kind"),
            [(labels, one.changed_at or 0.0) for labels, one in rows],
        )
        yield _gauge(
            "csi_multi_backend_rpcs_running",
            "RPCs that are running in the instance.",
            ("backend",),
            [((one.name,), len(one.proxy.admission.running_rpcs())) for one in self._registry],
        )

    def _volumes(self) -> Iterator[Metric]:
        results = self._survey.results().items()
        counted = [((name,), one) for name, one in results if one.volumes is not None]
        limited = [((name,), one) for name, one in results if one.available is not None]
        for name, text, rows in (
            (
                "csi_multi_volumes",
                "Volumes at the last survey.",
                [(labels, float(one.volumes or 0)) for labels, one in counted],
            ),
            (
                "csi_multi_volumes_bytes",
                "Total size of all volumes at the last survey.",
                [(labels, float(one.size)) for labels, one in counted],
            ),
            (
                "csi_multi_capacity_available_bytes",
                "Free capacity at the last survey.",
                [(labels, float(one.available or 0)) for labels, one in limited],
            ),
            (
                "csi_multi_survey_timestamp_seconds",
                "When volumes and capacity were last read successfully.",
                [((instance,), one.read_at) for instance, one in results],
            ),
        ):
            yield _gauge(name, text, ("backend",), rows)


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    family = Gauge(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counter_by_instance(name: str, text: str, values: Mapping[str, float]) -> Counter:
    metric = Counter(name, text, labels=("instance",))
    for instance, value in sorted(values.items()):
        metric.add_metric((instance,), value)
    return metric
