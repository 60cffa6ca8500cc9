"""The statistics that EBS keeps of each volume, read from the log page of its NVMe disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from csi_multi_ebs.backend import EbsBackend
from csi_multi_ebs.config import Config
from csi_multi_ebs.devices import DeviceManager
from csi_multi_ebs.volume_statistics import LOG_PAGE, metrics

from csi_multi.contract import HistogramBucket, Metric, MetricKind, Setting
from csi_multi.host.command import LocalHost
from csi_multi.loading.instance import Instance
from csi_multi.loading.registry import Registry

from .fake_kernel import FakeKernel

ONE, TWO = "vol-0123456789abcdef0", "vol-0123456789abcdef1"
DOCUMENT = Path(__file__).parents[3] / "docs/ebs.md"
BEFORE_HISTOGRAMS, HISTOGRAM_BYTES, BIN_BYTES = 512, 8 + 64 * 24, 24

Bins = list[tuple[int, int, int]]  # lower and upper bound in microseconds, number


def histogram(bins: Bins) -> bytes:
    made = bytearray(HISTOGRAM_BYTES)
    made[:8] = len(bins).to_bytes(8, "little")
    for number, (lower, upper, count) in enumerate(bins):
        start = 8 + number * BIN_BYTES
        made[start : start + 8] = lower.to_bytes(8, "little")
        made[start + 8 : start + 16] = upper.to_bytes(8, "little")
        made[start + 16 : start + 20] = count.to_bytes(4, "little")
        made[start + 20 : start + 24] = b"\xff\xff\xff\xff"  # reserved
    return bytes(made)


def page(*values: int, magic: int = 0x3C23B510, reads: Bins = (), writes: Bins = ()) -> bytes:  # type: ignore[assignment]
    """The 4096 bytes of the page: magic, reserved, eleven numbers, reserved, two histograms, reserved."""
    head = magic.to_bytes(4, "little") + b"\xff" * 4 + b"".join(one.to_bytes(8, "little") for one in values)
    return (head.ljust(BEFORE_HISTOGRAMS, b"\xff") + histogram(list(reads)) + histogram(list(writes))).ljust(
        4096, b"\xff"
    )


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)


@pytest.fixture
def devices(kernel: FakeKernel) -> DeviceManager:
    return DeviceManager(kernel)


VALUES = (10, 20, 4096, 8192, 1_500_000, 2_500_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 7)
PAGE = page(*VALUES, reads=[(0, 500, 4), (500, 1000, 6)], writes=[(0, 1_000_000, 20)])


def by_name(found: tuple[Metric, ...]) -> dict[str, Metric]:
    return {one.metric_name: one for one in found}


def test_every_number_of_the_page_is_shown_in_base_units() -> None:
    found = by_name(metrics({ONE: PAGE}))
    values = {name: one.value for name, one in found.items()}

    assert values == {
        "read_operations": 10,
        "write_operations": 20,
        "read_bytes": 4096,
        "write_bytes": 8192,
        "read_seconds": 1.5,
        "write_seconds": 2.5,
        "volume_iops_exceeded_seconds": 1,
        "volume_throughput_exceeded_seconds": 2,
        "instance_iops_exceeded_seconds": 3,
        "instance_throughput_exceeded_seconds": 4,
        "queue_length": 7,
    }
    assert {one.handle for one in found.values()} == {ONE}
    assert found["queue_length"].kind is MetricKind.GAUGE
    assert found["read_bytes"].kind is MetricKind.COUNTER


def test_the_bins_are_cumulated() -> None:
    found = by_name(metrics({ONE: PAGE}))

    assert found["read_seconds"].buckets == (
        HistogramBucket(upper=0.0005, count=4),
        HistogramBucket(upper=0.001, count=10),
    )
    assert found["write_seconds"].buckets == (HistogramBucket(upper=1.0, count=20),)


def test_the_largest_numbers_and_all_bins_fit() -> None:
    most = 2**64 - 1
    full = [(number, number + 1, 2**32 - 1) for number in range(64)]
    found = by_name(metrics({ONE: page(*[most] * 11, reads=full)}))

    assert found["read_operations"].value == most
    assert len(found["read_seconds"].buckets) == 64
    assert found["read_seconds"].buckets[-1].count == 64 * (2**32 - 1)


def test_a_number_of_bins_beyond_the_page_reads_no_further() -> None:
    broken = bytearray(PAGE)
    broken[BEFORE_HISTOGRAMS : BEFORE_HISTOGRAMS + 8] = (2**63).to_bytes(8, "little")

    assert len(by_name(metrics({ONE: bytes(broken)}))["read_seconds"].buckets) <= 64


@pytest.mark.parametrize("answer", [bytes(4096), page(*VALUES, magic=0xEC2C0D7E), b"", PAGE[:600]])
def test_a_page_of_something_else_is_no_statistics(answer: bytes) -> None:
    assert metrics({ONE: answer}) == ()


def test_prometheus_reads_what_the_driver_shows_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="the extra 'metrics' is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    from csi_multi.telemetry.backend_metrics import BackendMetricsCollector

    setting = Setting(instance="ireland", driver="d", cluster="c", node="n", host=LocalHost(), serves_node=False)
    backend = EbsBackend(Config(region="eu-west-1"), setting)
    monkeypatch.setattr(DeviceManager, "log_pages", lambda *_: {ONE: PAGE, TWO: PAGE})
    collected = prometheus.CollectorRegistry()
    collected.register(BackendMetricsCollector(Registry([Instance("ireland", "ebs", backend)], {}, "")))

    text = prometheus.generate_latest(collected).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    shown = {(one.name, one.labels["volume_id"]): one.value for one in samples if "le" not in one.labels}
    assert shown["csi_multi_ebs_read_bytes_total", f"ireland/{ONE}"] == 4096
    assert shown["csi_multi_ebs_read_seconds_sum", f"ireland/{TWO}"] == 1.5
    assert shown["csi_multi_ebs_read_seconds_count", f"ireland/{TWO}"] == 10
    assert len(shown) == 2 * (9 + 2 * 2)


def test_each_open_volume_has_the_page_of_its_own_disk(
    kernel: FakeKernel, devices: DeviceManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.nvme("nvme0n1", TWO.replace("-", ""))
    kernel.nvme("nvme1n1", ONE.replace("-", ""))
    kernel.nvme("nvme2n1", "vol0123456789abcdef2")  # attached, and not open: the root of the instance, or another's
    kernel.xen("xvdba", 51792)
    monkeypatch.setattr(kernel, "log_page", lambda disk, path, number: f"{disk} {path.name} {number}".encode())

    assert devices.log_pages((ONE, TWO, "vol-0123456789abcdef3"), LOG_PAGE) == {
        ONE: b"nvme1n1 nvme1n1 208",
        TWO: b"nvme0n1 nvme0n1 208",
    }


def test_a_disk_without_the_page_is_left_out(kernel: FakeKernel, devices: DeviceManager) -> None:
    kernel.nvme("nvme0n1", ONE.replace("-", ""))
    kernel.nvme("nvme1n1", TWO.replace("-", ""), node=False)

    assert devices.log_pages((ONE, TWO), LOG_PAGE) == {}  # the simulated nodes are files, which know no such call


def test_the_manual_has_every_metric() -> None:
    text = DOCUMENT.read_text()

    for one in metrics({ONE: PAGE}):
        suffix = "_total" if one.kind is MetricKind.COUNTER else ""
        assert f"`csi_multi_ebs_{one.metric_name}{suffix}`" in text
