"""The driver's state as Prometheus metrics, read at every scrape from memory alone: nothing here asks a storage."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import version

from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..loading.registry import Registry
from ..loading.reload import ConfigReloader
from ..rpc.interceptor import SharedRpcState
from .survey import Surveys

Row = tuple[tuple[str, ...], float]


class State(Collector):
    """What the driver is doing now, and what it knew last."""

    def __init__(self, traffic: SharedRpcState, registry: Registry, surveys: Surveys, reload: ConfigReloader) -> None:
        self._traffic = traffic
        self._registry = registry
        self._surveys = surveys
        self._reload = reload
        self._versions = {name: version(name) for name in ("csi-multi", "grpcio")}

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not collect."""
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
        yield from self._busy()
        yield from self._backends()
        yield from self._volumes()
        yield Gauge(
            "csi_multi_config_last_reload_successful",
            "0: the file has changed and was refused; the configuration before is used.",
            value=float(self._reload.successful),
        )
        yield Gauge(
            "csi_multi_config_last_reload_success_timestamp_seconds",
            "When the configuration that is used was read.",
            value=self._reload.when,
        )

    def _busy(self) -> Iterator[Metric]:
        held = self._traffic.locks.held()
        yield Gauge("csi_multi_locks_held", "Objects that an operation holds now.", value=len(held))
        oldest = held[0][2] if held else 0.0
        yield Gauge("csi_multi_lock_oldest_seconds", "Age of the oldest lock; 0: none is held.", value=oldest)
        slots = self._traffic.slots.items()
        yield _gauge(
            "csi_multi_threads_in_use",
            "Threads that RPCs hold, by what the RPCs do.",
            ("cost",),
            [((cost.value,), one.total - one.free) for cost, one in slots],
        )
        yield _gauge(
            "csi_multi_threads",
            "Threads that RPCs may hold at most, by what the RPCs do.",
            ("cost",),
            [((cost.value,), one.total) for cost, one in slots],
        )

    def _backends(self) -> Iterator[Metric]:
        rows = [((one.name, one.kind), one) for one in self._registry if one.since is not None]
        broken = [((name, ""), 0.0) for name in self._registry.broken]
        yield _gauge(
            "csi_multi_backend_up",
            "1 if the instance's storage answered its last check, 0 if not or if the instance is broken.",
            ("backend", "kind"),
            [*((labels, float(not one.down)) for labels, one in rows), *broken],
        )
        yield _gauge(
            "csi_multi_backend_changed_timestamp_seconds",
            "Since when the instance is up, or down.",
            ("backend", "kind"),
            [(labels, one.since or 0.0) for labels, one in rows],
        )
        yield _gauge(
            "csi_multi_backend_rpcs_running",
            "RPCs that are in the instance now.",
            ("backend",),
            [((one.name,), len(one.proxy.admission.running())) for one in self._registry],
        )

    def _volumes(self) -> Iterator[Metric]:
        found = [((name,), one) for name, one in self._surveys.found().items()]
        listed = [(labels, one) for labels, one in found if one.volumes is not None]
        measured = [(labels, one) for labels, one in found if one.available is not None]
        name = ("backend",)
        yield _gauge(
            "csi_multi_volumes",
            "Volumes when last counted.",
            name,
            [(labels, one.volumes or 0) for labels, one in listed],
        )
        yield _gauge(
            "csi_multi_volumes_bytes",
            "Size of all volumes together when last counted.",
            name,
            [(labels, one.size) for labels, one in listed],
        )
        yield _gauge(
            "csi_multi_capacity_available_bytes",
            "What could be created when last asked.",
            name,
            [(labels, one.available or 0) for labels, one in measured],
        )
        yield _gauge(
            "csi_multi_survey_timestamp_seconds",
            "When volumes were counted and capacity was asked for without a failure.",
            name,
            [(labels, one.when) for labels, one in found],
        )


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    family = Gauge(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family
