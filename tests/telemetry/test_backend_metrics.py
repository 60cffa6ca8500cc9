"""Metrics that a backend has of its own: shown in each scrape, and none holds a scrape up or spoils it."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import HistogramBucket, Metric, MetricKind, Unavailable
from csi_multi.node import device_records
from csi_multi.telemetry import backend_metrics

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
READS = Metric(metric_name="reads", text="Reads.", kind=COUNTER, value=3, handle="v1")
QUEUE = Metric(metric_name="queue_length", text="Waiting.", kind=GAUGE, value=2.5, labels={"side": "left"})
SECONDS = Metric(
    metric_name="read_seconds",
    text="Durations.",
    kind=HISTOGRAM,
    value=1.5,
    buckets=(HistogramBucket(upper=0.001, count=4), HistogramBucket(upper=0.5, count=7)),
)


class Measured(MemoryBackend):
    """Has these metrics, or raises this error."""

    answer: Any = (READS, QUEUE, SECONDS)
    opened: Any = None

    def metrics(self, opened: tuple[str, ...]) -> tuple[Metric, ...]:
        self.opened = opened
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


@pytest.fixture
def measured(make: Any) -> Callable[..., Any]:
    def instance(name: str, answer: Any = Measured.answer) -> Any:
        one = make(name, Measured)
        one.backend.answer = answer
        return one

    return instance


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No device is open on this node, unless a test says so."""
    monkeypatch.setattr(device_records, "NOTES", tmp_path / "notes")


def test_a_metric_has_the_prefix_of_its_kind_and_the_label_of_its_instance(show: Any, measured: Any) -> None:
    samples = show(measured("fast")).scrape()

    assert samples("csi_multi_measured_reads_total", backend="fast", volume_id="fast/v1") == [3]
    assert samples.labels("csi_multi_measured_queue_length") == [{"backend": "fast", "side": "left"}]
    assert samples("csi_multi_measured_queue_length") == [2.5]


def test_a_histogram_has_cumulated_buckets_and_the_sum(show: Any, measured: Any) -> None:
    samples = show(measured("fast")).scrape()
    buckets = {
        one["le"]: samples("csi_multi_measured_read_seconds_bucket", **one)
        for one in samples.labels("csi_multi_measured_read_seconds_bucket")
    }

    assert buckets == {"0.001": [4], "0.5": [7], "+Inf": [7]}
    assert samples("csi_multi_measured_read_seconds_count", backend="fast") == [7]
    assert samples("csi_multi_measured_read_seconds_sum", backend="fast") == [1.5]


def test_instances_of_one_kind_share_a_metric(show: Any, measured: Any) -> None:
    samples = show(measured("fast"), measured("slow")).scrape()

    assert samples("csi_multi_measured_reads_total", volume_id="slow/v1") == [3]
    assert len([one for one in samples.families if one.name == "csi_multi_measured_reads"]) == 1


def test_a_backend_without_metrics_has_none(show: Any, make: Any) -> None:
    assert not [name for name in show(make("fast")).scrape().names() if "memorybackend" in name]


def test_a_backend_hears_which_of_its_volumes_are_open_here(
    show: Any, measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = measured("fast")
    driver = instance.backend.setting.driver
    keys = [(driver, "fast/v1"), (driver, "fast/a/b"), (driver, "slow/v2"), ("another.driver", "fast/v3")]
    monkeypatch.setattr(
        device_records, "open_volumes", lambda: [device_records.VolumeKey(driver=a, volume=b) for a, b in keys]
    )
    show(instance).scrape()

    assert instance.backend.opened == ("a/b", "v1")


def test_a_controller_has_no_open_volumes(show: Any, measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = measured("fast")
    instance.backend.setting = dataclasses.replace(instance.backend.setting, serves_node=False)
    monkeypatch.setattr(device_records, "open_volumes", lambda: pytest.fail("the node was looked at"))
    show(instance).scrape()

    assert instance.backend.opened == ()


def test_a_backend_that_hangs_is_missing_and_called_once_until_it_returns(
    show: Any, measured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_metrics, "WAIT", 0.05)
    go, calls = threading.Event(), []

    def hang() -> tuple[Metric, ...]:
        calls.append(1)
        go.wait(60)
        return (READS,)

    shown = show(measured("stuck", hang), measured("fast"))
    for _ in range(3):
        samples = shown.scrape()
        assert samples("csi_multi_measured_reads_total", backend="fast") == [3]
        assert samples("csi_multi_measured_reads_total", backend="stuck") == []
    assert len(calls) == 1

    go.set()
    end = time.monotonic() + 20
    while not shown.scrape()("csi_multi_measured_reads_total", backend="stuck"):
        assert time.monotonic() < end


@pytest.mark.parametrize(
    "answer",
    [
        Unavailable("no answer"),
        ZeroDivisionError(),
        ("no metric",),
        (dataclasses.replace(READS, metric_name="no name"),),
        (dataclasses.replace(READS, value="many"),),  # type: ignore[arg-type]
        (dataclasses.replace(SECONDS, buckets=(HistogramBucket(upper=1.0, count=-1),)),),
    ],
)
def test_a_backend_that_fails_is_missing_and_the_log_says_so_once(
    show: Any, measured: Any, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shown = show(measured("broken", answer), measured("fast"))
    for _ in range(2):
        samples = shown.scrape()

    assert samples("csi_multi_measured_reads_total", backend="fast") == [3]
    assert not [one for one in samples.labels("csi_multi_measured_reads_total") if one["backend"] == "broken"]
    assert len([one for one in caplog.messages if "backend broken: its own metrics are missing" in one]) == 1


@pytest.mark.parametrize(
    "other",
    [
        READS,  # twice the same series, for which Prometheus would refuse the whole scrape
        dataclasses.replace(READS, kind=GAUGE, handle="v2"),
        dataclasses.replace(READS, labels={"side": "left"}, handle="v2"),
        dataclasses.replace(QUEUE, labels={"no name": "left"}),
        dataclasses.replace(SECONDS, buckets=SECONDS.buckets[::-1]),
        dataclasses.replace(SECONDS, buckets=SECONDS.buckets + SECONDS.buckets[-1:]),
        dataclasses.replace(SECONDS, buckets=(HistogramBucket(upper=float("inf"), count=1),)),
        dataclasses.replace(QUEUE, labels={"backend": "other"}),
    ],
)
def test_a_metric_that_does_not_fit_the_others_is_left_out(
    show: Any, measured: Any, other: Metric, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    shown = show(measured("fast", (READS, other)))
    samples = [shown.scrape() for _ in range(2)][-1]

    assert samples("csi_multi_measured_reads_total") == [3]
    assert samples("csi_multi_measured_queue_length") == []
    assert samples("csi_multi_measured_read_seconds_count") == []
    assert len([one for one in caplog.messages if "left out" in one]) == 1
