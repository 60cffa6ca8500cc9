"""Metrics that a backend has of its own, beside those that the driver counts for every backend (since 1.1)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .model import Strings


class MetricKind(enum.Enum):
    """COUNTER: a total that only grows. GAUGE: a present value. HISTOGRAM: numbers of observations by their size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBucket:
    """How many observations are not greater than `upper`; those of the smaller buckets are among them."""

    upper: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One value, in the base units of Prometheus: seconds, bytes.

    The name is words of [a-z0-9] joined by _, without the driver's prefix and Prometheus's suffixes: "read_operations"
    of a backend of kind ebs is shown as csi_multi_ebs_read_operations_total. All values of one name have the same kind
    and the same labels, of which the driver adds `backend`, and `volume_id` where there is a handle.
    """

    metric_name: str
    text: str  # what it is, in one sentence
    kind: MetricKind
    value: float = 0.0  # of a histogram: the sum of the observations
    handle: str | None = None  # the volume that it is about
    labels: Strings = field(default_factory=dict)
    buckets: tuple[HistogramBucket, ...] = ()  # of a histogram, the smallest first
