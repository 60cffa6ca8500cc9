"""Metrics that backends have of their own (Backend.metrics), as Prometheus metrics.

Every scrape calls the backends, each in a thread of its own. One that does not answer in time is missing in the scrape,
and is not called again before it has returned. What does not fit is left out, because Prometheus refuses a scrape with
one wrong line as a whole.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..contract import ids
from ..contract.backend import Backend
from ..contract.errors import StorageError
from ..contract.metrics import Metric, MetricKind
from ..host.supervised import CallHung, CallNotStarted, SupervisedCall
from ..loading.backend_proxy import UnexpectedError
from ..loading.instance import Instance
from ..loading.registry import Registry
from ..node import device_records

log = logging.getLogger(__name__)

WAIT = 1.0  # seconds that a scrape waits for all backends together
OWN_LABELS = ("backend", "volume_id")
LABEL = re.compile(r"[a-z][a-z0-9_]*")

Call = SupervisedCall[tuple[Metric, ...]]


class BackendMetricsCollector(Collector):
    """The present metrics of all instances. Thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._calls: dict[str, tuple[Instance, Call]] = {}  # by instance: the last one
        self._problems: dict[tuple[str, str], str] = {}  # by instance and kind of problem: as logged

    def describe(self) -> Iterable[Family]:
        """Return nothing, so that registering does not collect."""
        return ()

    def collect(self) -> Iterator[Family]:
        families: dict[str, _SharedFamily] = {}
        for instance, metrics in self._read():
            refused = ""
            for one in metrics:
                name = f"csi_multi_{_prefix(instance.kind)}_{one.metric_name}"
                family = families.setdefault(name, _SharedFamily(name, one))
                refused = family.add(instance.name, one) or refused
            self._report(instance, "some of its own metrics are left out", refused)
        yield from (family.family for family in families.values())

    def _read(self) -> Iterator[tuple[Instance, tuple[Metric, ...]]]:
        """Yield the metrics of each instance that answers in time."""
        calls, end = self._start(), time.monotonic() + WAIT
        for instance, call in calls:
            try:
                found, problem = call.result(max(0.0, end - time.monotonic())), ""
            except (StorageError, UnexpectedError, CallHung, CallNotStarted) as error:
                found, problem = (), str(error)
            self._report(instance, "its own metrics are missing", problem)
            yield instance, found

    def _start(self) -> list[tuple[Instance, Call]]:
        """Call every instance whose last call has returned; return the running call of each."""
        wanted = [one for one in self._registry if not one.remote and type(one.backend).metrics is not Backend.metrics]
        opened = _open_handles(wanted)
        with self._lock:
            self._calls = {one.name: self._running(one) or self._begin(one, opened) for one in wanted}
            return list(self._calls.values())

    def _running(self, instance: Instance) -> tuple[Instance, Call] | None:
        known = self._calls.get(instance.name)
        return known if known and known[0] is instance and not known[1].done(0) else None

    def _begin(self, instance: Instance, opened: dict[str, tuple[str, ...]]) -> tuple[Instance, Call]:
        read = functools.partial(instance.backend.metrics, opened.get(instance.name, ()))
        return instance, SupervisedCall(f"metrics-{instance.name}", read)

    def _report(self, instance: Instance, what: str, problem: str) -> None:
        """Log a problem when it begins or changes."""
        key = instance.name, what
        if problem and self._problems.get(key) != problem:
            log.info("backend %s: %s: %s", instance.name, what, problem)
        self._problems[key] = problem


class _SharedFamily:
    """All values of one name."""

    def __init__(self, name: str, first: Metric) -> None:
        self._first = first
        self._seen: set[tuple[str, ...]] = set()
        labels = ("backend", *(("volume_id",) if first.handle is not None else ()), *sorted(first.labels))
        self.family = _FAMILIES[first.kind](name, first.text, labels=labels)

    def add(self, instance: str, one: Metric) -> str:
        """Add a value; return why it is left out, "" if it is not."""
        values = (
            instance,
            *((ids.join(instance, one.handle),) if one.handle is not None else ()),
            *(text for _, text in sorted(one.labels.items())),
        )
        if problem := self._problem(one, values):
            return f"{one.metric_name}: {problem}"
        self._seen.add(values)
        if isinstance(self.family, HistogramMetricFamily):
            buckets = [(_bound(bucket.upper), float(bucket.count)) for bucket in one.buckets]
            total = max((float(bucket.count) for bucket in one.buckets), default=0.0)
            self.family.add_metric(values, [*buckets, ("+Inf", total)], one.value)
        else:
            self.family.add_metric(values, one.value)
        return ""

    def _problem(self, one: Metric, values: tuple[str, ...]) -> str:
        first = self._first
        if (one.kind, one.labels.keys(), one.handle is None) != (first.kind, first.labels.keys(), first.handle is None):
            return "not all of its values have the same kind and labels"
        if wrong := [key for key in one.labels if not LABEL.fullmatch(key) or key in OWN_LABELS]:
            return f"{wrong[0][:40]!r} cannot be the name of a label"
        bounds, counts = [one.upper for one in one.buckets], [one.count for one in one.buckets]
        if any(a >= b for a, b in pairwise((*bounds, math.inf))) or counts != sorted(counts):
            return "the bounds or the numbers of its buckets do not grow"
        return "two of its values have the same labels" if values in self._seen else ""


_FAMILIES: dict[MetricKind, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


def _bound(upper: float) -> str:
    text: str = floatToGoString(upper)  # type: ignore[no-untyped-call]
    return text


def _prefix(kind: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", kind.lower())


def _open_handles(instances: list[Instance]) -> dict[str, tuple[str, ...]]:
    """Return which volumes of each instance are open on this node."""
    settings = {one.name: one.backend.setting for one in instances if hasattr(one.backend, "setting")}
    found: dict[str, set[str]] = {name: set() for name, setting in settings.items() if setting.serves_node}
    for key in device_records.open_volumes() if found else ():
        name, _, handle = key.volume.partition("/")
        if name in found and settings[name].driver == key.driver:
            found[name].add(handle)
    return {name: tuple(sorted(handles)) for name, handles in found.items()}
