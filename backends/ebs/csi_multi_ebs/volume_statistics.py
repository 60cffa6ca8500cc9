"""EBS's detailed performance statistics of a volume: a log page of its NVMe disk, as metrics.

The page has the totals since the volume was attached: a magic number, eleven numbers, and a histogram each of the
durations of reads and writes. Times are in microseconds. Disks of other vendors and older instance types have no such
page.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from csi_multi.contract import HistogramBucket, Metric, MetricKind

LOG_PAGE = 0xD0
MAGIC = 0x3C23B510
NUMBERS = struct.Struct("<I4x11Q416x")  # the magic number, the totals, reserved
COUNT = struct.Struct("<Q")  # the number of bins in use
BIN = struct.Struct("<8xQI4x")  # the lower bound, the upper one, the number, reserved
BINS = 64
READS = NUMBERS.size
WRITES = READS + COUNT.size + BINS * BIN.size
END = WRITES + COUNT.size + BINS * BIN.size
MICRO = 1e-6

# In the order of the page; the durations between them belong to the histograms.
COUNTERS = (
    ("read_operations", "Reads that have ended.", 1),
    ("write_operations", "Writes that have ended.", 1),
    ("read_bytes", "Bytes that were read.", 1),
    ("write_bytes", "Bytes that were written.", 1),
)
EXCEEDED = (
    ("volume_iops_exceeded_seconds", "Time in which more IOPS were asked for than the volume has.", MICRO),
    ("volume_throughput_exceeded_seconds", "Time in which more throughput was asked for than the volume has.", MICRO),
    ("instance_iops_exceeded_seconds", "Time in which more IOPS were asked for than the instance has.", MICRO),
    (
        "instance_throughput_exceeded_seconds",
        "Time in which more throughput was asked for than the instance has.",
        MICRO,
    ),
)


def metrics(pages: Mapping[str, bytes]) -> tuple[Metric, ...]:
    """Return the metrics of the volumes with these log pages, by handle; nothing for a page of another kind."""
    return tuple(one for handle, page in pages.items() for one in _of_volume(handle, page))


def _of_volume(handle: str, page: bytes) -> Iterator[Metric]:
    if len(page) < END:
        return
    magic, *numbers = NUMBERS.unpack_from(page)
    if magic != MAGIC:
        return
    read_time, write_time, queue_length = numbers[4] * MICRO, numbers[5] * MICRO, numbers[10]
    for (name, text, unit), value in zip((*COUNTERS, *EXCEEDED), (*numbers[:4], *numbers[6:10]), strict=True):
        yield Metric(metric_name=name, text=text, kind=MetricKind.COUNTER, value=value * unit, handle=handle)
    yield Metric(
        metric_name="queue_length",
        text="Reads and writes that have not ended.",
        kind=MetricKind.GAUGE,
        value=queue_length,
        handle=handle,
    )
    for name, text, total, start in (
        ("read_seconds", "Durations of reads.", read_time, READS),
        ("write_seconds", "Durations of writes.", write_time, WRITES),
    ):
        yield Metric(
            metric_name=name,
            text=text,
            kind=MetricKind.HISTOGRAM,
            value=total,
            handle=handle,
            buckets=_buckets(page, start),
        )


def _buckets(page: bytes, start: int) -> tuple[HistogramBucket, ...]:
    (number,) = COUNT.unpack_from(page, start)
    found, total, last = [], 0, 0
    for index in range(min(number, BINS)):
        upper, count = BIN.unpack_from(page, start + COUNT.size + index * BIN.size)
        if upper <= last:
            break  # not in use
        total, last = total + count, upper
        found.append(HistogramBucket(upper=upper * MICRO, count=total))
    return tuple(found)
